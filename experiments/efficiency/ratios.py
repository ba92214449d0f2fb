"""Speed and memory of the mechanisms, as ratios to plainly written peers.

    python -m experiments.efficiency.ratios

Each comparison compiles its programs and runs them in turns in one process, in float32, one
sequence, 8 heads of 64 channels. A ratio is a peer's median time, or temporary memory, over ours;
all is measured ``--repeats`` times, and the tables give the range. Results go to ratios.json and
ratios.md beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.efficiency import peers
from experiments.efficiency.timing import compare, forward_and_backward, normal
from experiments.provenance import commit
from flax_linattn import ops

HERE = Path(__file__).parent
COMMAND = "python -m experiments.efficiency.ratios"
HEADS, DIM = 8, 64


class Comparison(NamedTuple):
    """One row: ``ours`` against peers, on arguments of ``length`` tokens."""

    what: str
    length: int
    ours: Callable[..., Any]
    peers: dict[str, Callable[..., Any]]
    scores: bool = False

    def arguments(self) -> list[Any]:
        tokens = (1, self.length, HEADS, DIM)
        return normal(tokens[:3], tokens) if self.scores else normal(tokens, tokens, tokens)


def _mechanism(spec: str, **options: Any) -> Callable[..., Any]:
    mechanism = ops.get_mechanism(spec)
    return lambda q, k, v: mechanism.attend(q, k, v, **options)


def _aaren(score: Any, v: Any) -> Any:
    """Aaren from its scores, as the peer gets them: a query of one channel."""
    aaren = ops.get_mechanism("aaren", scale=1.0)
    q = jax.numpy.ones((HEADS, 1), score.dtype)
    return aaren.attend(q, score[..., None], v, is_causal=True)


COMPARISONS = [
    Comparison("aaren", 16384, _aaren, {"associative_scan": peers.aaren_scan}, scores=True),
    Comparison(
        "elementwise_series, order 6, causal",
        4096,
        _mechanism("elementwise_series:order=6", is_causal=True),
        {
            "the paper's cumulative sums": peers.elementwise_series_cumsum,
            "softmax attention (XLA)": peers.softmax_xla,
        },
    ),
    Comparison(
        "taylorshift",
        8192,
        _mechanism("taylorshift"),
        {"algorithm 1 as printed": peers.taylorshift_algorithm_1},
    ),
    Comparison(
        "expressive, causal",
        4096,
        _mechanism("expressive", is_causal=True),
        {"its T x T weights": peers.expressive_dense},
    ),
]


def measure(comparison: Comparison, rounds: int) -> list[dict[str, Any]]:
    """Forward, and forward with backward."""
    rows = []
    for which, wrap in (("forward", lambda f: f), ("forward and backward", forward_and_backward)):
        programs = {"ours": wrap(comparison.ours)}
        programs |= {name: wrap(peer) for name, peer in comparison.peers.items()}
        results = compare(programs, comparison.arguments(), rounds)
        row = {
            "what": comparison.what,
            "length": comparison.length,
            "pass": which,
            "results": results,
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def _range(values: list[float], digits: int) -> str:
    low, high = (f"{x:.{digits}f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} - {high}"


def table(rows: list[dict[str, Any]]) -> str:
    """One line a comparison, pass and peer; ranges over the repeats."""
    lines = [
        "| ours | T | pass | peer | times faster | times less memory "
        "| ours, ms | ours, temporary MB | ours, compiling s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["what"], row["length"], row["pass"]), []).append(row["results"])
    for (what, length, which), group in groups.items():
        for peer in group[0]:
            if peer == "ours":
                continue
            faster = [
                r[peer]["milliseconds"]["median"] / r["ours"]["milliseconds"]["median"]
                for r in group
            ]
            smaller = group[0][peer]["temporary_bytes"] / max(
                1, group[0]["ours"]["temporary_bytes"]
            )
            ours = [r["ours"] for r in group]
            cells = [
                what,
                f"{length:,}",
                which,
                peer,
                _range(faster, 1),
                f"{smaller:,.0f}" if smaller >= 10 else f"{smaller:.1f}",
                _range([r["milliseconds"]["median"] for r in ours], 1),
                f"{ours[0]['temporary_bytes'] / 1e6:.2f}",
                _range([r["compile_seconds"] for r in ours], 1),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures all comparisons and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="comparisons whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    chosen = [c for c in COMPARISONS if options.only in c.what]
    if not chosen:
        parser.error(f"no comparison is named {options.only!r}: {[c.what for c in COMPARISONS]}")
    rows = [
        row for _ in range(options.repeats) for c in chosen for row in measure(c, options.rounds)
    ]
    device = jax.devices()[0]
    results = {
        "command": COMMAND,
        "commit": commit(),
        "device": f"{device.platform}, {device.device_kind}",
        "rows": rows,
    }
    (options.output / "ratios.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "ratios.md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
