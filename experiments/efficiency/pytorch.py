"""This library compared with plain PyTorch and its fused softmax attention, on the same cores.

    python -m experiments.efficiency.pytorch

Needs PyTorch. Both run in one process, in turns, with one thread per core, in float32: one
sequence, 8 heads of 64 channels. The PyTorch functions are the papers' formulations. A check before
the timing confirms that they compute the same outputs.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.efficiency import torch_peers
from experiments.measured import Measured, Rows
from flax_linattn.bench import (
    Comparison,
    Journal,
    comparisons,
    compile_program,
    forward_and_backward,
    run_in_turns,
    spread,
)
from flax_linattn.bench.comparison import FORWARD, OURS, PASSES
from flax_linattn.bench.report import interval, markdown, number

PLAIN, FUSED = "PyTorch, plain", "PyTorch, scaled_dot_product_attention"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    lengths: tuple[int, ...] = (4096,)
    rounds: int = 5
    repeats: int = 3
    seconds: float = 8.0


def import_torch() -> Any:
    """PyTorch, on all cores; its idle threads sleep instead of taking cores from ours."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError:
        raise SystemExit(
            "this comparison needs PyTorch, which the library does not: pip install torch"
        ) from None
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch


def peers(torch: Any) -> dict[str, dict[str, Callable[..., Any]]]:
    """PyTorch's functions by the name of the comparison in ``flax-linattn bench``."""
    causal = torch_peers.softmax(torch)
    return {
        "aaren": {
            PLAIN: torch_peers.aaren_scan(torch),
            FUSED: lambda score, v: causal(v, v, v),
        },
        "elementwise_series, order 6, causal": {
            PLAIN: torch_peers.elementwise_series(torch),
            FUSED: causal,
        },
        "taylorshift": {
            PLAIN: torch_peers.taylorshift(torch),
            FUSED: torch_peers.softmax(torch, is_causal=False),
        },
    }


def device(torch: Any) -> str:
    """Where jax computes: "cuda" or "cpu"."""
    if jax.default_backend() != "gpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise SystemExit("jax computes on a GPU, but this PyTorch has none: install one for CUDA")
    return "cuda"


def torch_call(torch: Any, function: Callable[..., Any], arrays: Any, which: str) -> Any:
    """A call without arguments: the pass of a PyTorch function."""
    where = device(torch)
    tensors = [torch.tensor(np.asarray(x), device=where) for x in arrays]

    def call() -> Any:
        if which == FORWARD:
            with torch.no_grad():
                y = function(*tensors)
        else:
            leaves = [x.detach().requires_grad_() for x in tensors]
            y = function(*leaves)
            torch.autograd.grad(y, leaves, y.detach(), allow_unused=True)
        if where == "cuda":
            torch.cuda.synchronize()
        return y

    return call


def check(torch: Any, ours: Comparison, plain: Callable[..., Any], tolerance: float = 1e-3) -> None:
    """Fails unless both compute the same on 64 tokens: values and gradients."""
    arrays = ours.arguments(64)
    expected, gradients = forward_and_backward(ours.ours)(*arrays)
    leaves = [torch.tensor(np.asarray(x), device=device(torch), requires_grad=True) for x in arrays]
    y = plain(*leaves)
    theirs = (y.detach(), *torch.autograd.grad(y, leaves, y.detach()))
    for tensor, array in zip(theirs, (expected, *gradients), strict=True):
        scale = float(np.abs(array).max())
        np.testing.assert_allclose(tensor.cpu().numpy(), array, atol=tolerance * scale)


def measure_all(
    torch: Any,
    ours: Mapping[str, Comparison],
    functions: Mapping[str, Mapping[str, Callable[..., Any]]],
    size: Size,
    journal: Journal,
) -> None:
    """A row for each comparison, repeat, length and pass."""
    for name, peers_of in functions.items():
        for repeat in range(size.repeats):
            for length in size.lengths:
                for which in PASSES:
                    journal.row(
                        {"comparison": name, "length": length, "pass": which, "repeat": repeat},
                        partial(time_row, torch, ours[name], peers_of, length, which, size),
                    )


def time_row(
    torch: Any,
    ours: Comparison,
    functions: Mapping[str, Callable[..., Any]],
    length: int,
    which: str,
    size: Size,
) -> dict[str, Any]:
    arrays = ours.arguments(length)
    compiled, _ = compile_program(PASSES[which](ours.ours), arrays)
    calls = {OURS: partial(compiled, *arrays)}
    for name, function in functions.items():
        calls[name] = torch_call(torch, function, arrays, which)
    times = run_in_turns(calls, (), size.rounds, size.seconds)
    results = {name: {"milliseconds": spread(values)} for name, values in times.items()}
    return {"torch": torch.__version__, "results": results}


def measure(size: Size, journal: Journal) -> None:
    torch = import_torch()
    ours = {comparison.name: comparison for comparison in comparisons()}
    functions = peers(torch)
    for name, peers_of in functions.items():
        check(torch, ours[name], peers_of[PLAIN])
    measure_all(torch, ours, functions, size, journal)


def table(rows: Rows, size: Size) -> str:
    heads = ["ours", "T", "pass", "against", "times faster", "ours, ms", "theirs, ms"]
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["comparison"], row["length"], row["pass"])
        groups.setdefault(key, []).append(row["results"])
    lines = []
    for (name, length, which), repeats in groups.items():
        for peer in (name for name in repeats[0] if name != OURS):
            mine, theirs = (
                [r[program]["milliseconds"]["median"] for r in repeats] for program in (OURS, peer)
            )
            faster = interval([b / a for a, b in zip(mine, theirs, strict=True)])
            medians = (number(float(np.median(values))) for values in (mine, theirs))
            lines.append([name, f"{length:,}", which, peer, faster, *medians])
    return f"{markdown(heads, lines)}\n\nPyTorch {rows[0]['torch']}."


EXPERIMENT = Measured(
    module="experiments.efficiency.pytorch",
    extras="plots,peers",
    about="not a table of any of the papers; the formulations are theirs",
    sizes={"cpu": Size(), "paper": Size(lengths=(4096, 16384))},
    measure=measure,
    table=table,
    left_out={
        "cpu": "torch.compile; memory, which PyTorch does not report on a CPU",
        "paper": "torch.compile",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
