"""Lowers every program of the accelerator measurements for CUDA and TPUs, without such a device.

    python -m experiments.accelerator --lower

Each piece runs at its smallest size, and every program that it compiles is also lowered for both
platforms. Programs that cannot be lowered on this machine are listed with the reason.
"""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.accelerator.pieces import PIECES, SMALL, piece
from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal, baselines, observe_compilations
from flax_linattn.bench.report import markdown

PLATFORMS = ("cuda", "tpu")
LOWERS = "lowers"
IN_TESTS = ("checks", "errors")
"""tests/ops/test_lowering.py lowers their programs in every test run."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the lowering at one scale.

    Attributes:
        pieces: their names.
    """

    pieces: tuple[str, ...] = tuple(one.name for one in PIECES if one.name not in IN_TESTS)


def measure(size: Size, journal: Journal) -> None:
    for name in size.pieces:
        journal.row({"piece": name}, partial(lower_piece, name))
    journal.row({"piece": "cuDNN's softmax attention"}, lower_cudnn)


def lower(traced: Any) -> dict[str, str]:
    """For each platform ``LOWERS``, or the first line of the error."""
    outcomes = {}
    for platform in PLATFORMS:
        try:
            traced.lower(lowering_platforms=(platform,))
            outcomes[platform] = LOWERS
        except Exception as error:  # whatever stands in the way is the result
            outcomes[platform] = _first_line(error)
    return outcomes


def lower_piece(name: str) -> dict[str, Any]:
    """All programs that a piece compiles."""
    programs: list[dict[str, str]] = []

    def observe(traced: Any) -> None:
        programs.append({"program": traced.fun_name, **lower(traced)})

    experiment = piece(name).experiment(SMALL)
    with tempfile.TemporaryDirectory() as folder, observe_compilations(observe):
        try:
            experiment.fill(SMALL, Journal(Path(folder, "rows.json"), {}, progress=False))
        except SystemExit as missing:
            return {"programs": programs, "not_run": str(missing)}
    return {"programs": programs}


def lower_cudnn() -> dict[str, Any]:
    """The one peer of a GPU that no other device has."""
    tokens = jax.ShapeDtypeStruct((1, 128, 8, 64), jnp.float32)
    try:
        traced = jax.jit(baselines.softmax_cudnn).trace(tokens, tokens, tokens)
    except RuntimeError as error:
        return {
            "programs": [],
            "not_run": f"it is traced only where cuDNN is installed: {_first_line(error)}",
        }
    return {"programs": [{"program": traced.fun_name, **lower(traced)}]}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"


def failures(rows: Rows) -> list[str]:
    """A line for each program and platform that do not go together."""
    return [
        f"{row['piece']}, `{program['program']}`, {platform}: {program[platform]}"
        for row in rows
        for program in row["programs"]
        for platform in PLATFORMS
        if program[platform] != LOWERS
    ]


def table(rows: Rows, size: Size) -> str:
    lines = []
    for row in rows:
        programs = row["programs"]
        line = [row["piece"], str(len(programs))]
        for platform in PLATFORMS:
            line.append(str(sum(program[platform] == LOWERS for program in programs)))
        lines.append([*line, row.get("not_run", "-").replace("\n", " ")])
    heads = ["piece", "programs", *(f"lower for {p}" for p in PLATFORMS), "not lowered here"]
    return "\n\n".join([markdown(heads, lines), *(f"- {line}" for line in failures(rows))])


EXPERIMENT = Measured(
    module="experiments.accelerator.lowering",
    about="every program lowers for accelerators",
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={
        "": "lengths and widths of the papers: each program is lowered at its smallest size; "
        "programs of the checks and errors, which tests/ops/test_lowering.py lowers"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
