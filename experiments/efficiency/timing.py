"""Programs compared in one process: times in turns, temporary memory, compile time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np


def forward_and_backward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The outputs of ``function``, and its gradients with the outputs themselves as weights."""

    def run(*arguments: Any) -> Any:
        y, pull = jax.vjp(function, *arguments)
        return y, pull(y)

    return run


def compare(
    programs: Mapping[str, Callable[..., Any]], arguments: Any, rounds: int
) -> dict[str, dict[str, Any]]:
    """Compiles all programs, then runs them in turns, each time beginning with another one.

    In each turn a program runs twice and the second time counts: the memory of the program before
    is given back to the system meanwhile, which takes a large one longer than a fast one runs.

    Args:
        programs: functions of the same arguments, by name.
        arguments: for all of them.
        rounds: how often each runs, after a first time that does not count.

    Returns:
        For each: ``milliseconds`` (median, least and most), ``temporary_bytes`` (peak, as compiled,
        without arguments and results), ``compile_seconds``.
    """
    compiled, results = {}, {}
    for name, program in programs.items():
        begin = time.perf_counter()
        compiled[name] = jax.jit(program).lower(*arguments).compile()
        seconds = time.perf_counter() - begin
        memory = compiled[name].memory_analysis()
        results[name] = {
            "compile_seconds": seconds,
            "temporary_bytes": memory.temp_size_in_bytes,
        }
    times: dict[str, list[float]] = {name: [] for name in programs}
    names = list(programs)
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            jax.block_until_ready(compiled[name](*arguments))  # while others' memory is freed
            begin = time.perf_counter()
            jax.block_until_ready(compiled[name](*arguments))
            if turn:
                times[name].append(1e3 * (time.perf_counter() - begin))
    for name, values in times.items():
        results[name]["milliseconds"] = {
            "median": statistics.median(values),
            "least": min(values),
            "most": max(values),
        }
    return results


def normal(*shapes: tuple[int, ...]) -> list[Any]:
    """Standard normal float32 arrays of a fixed seed."""
    rng = np.random.default_rng(0)
    return [jax.numpy.asarray(rng.normal(size=shape), np.float32) for shape in shapes]
