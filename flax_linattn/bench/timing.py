"""Programs compared in one process: times in turns, memory, compile time, communication."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.typing import Array

MIN_ROUNDS = 3
"""Minimum number of rounds, however long they take, for a useful median."""
SLOW = 1000.0
"""Milliseconds above which a program is timed without a warm-up run."""

_KINDS = "all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
_OPERATION = re.compile(rf" = (.*?) ({_KINDS})(?:-start)?\(")
_ARRAY = re.compile(r"([a-z]+)(\d+)?[a-z\d]*\[([\d,]*)\]")


def forward_and_backward(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same arguments that returns the output and a gradient for each argument.

    The cotangent is the output itself.

    Example:
        >>> import jax.numpy as jnp
        >>> y, (gradient,) = forward_and_backward(jnp.square)(jnp.array(3.0))
        >>> float(y), float(gradient)
        (9.0, 54.0)
    """

    def both(*arguments: Any) -> Any:
        y, pull = jax.vjp(function, *arguments)
        return y, pull(y)

    return both


_OBSERVERS: list[Callable[[Any], None]] = []


@contextlib.contextmanager
def observe_compilations(observer: Callable[[Any], None]) -> Iterator[None]:
    """Calls ``observer`` with the ``jax.stages.Traced`` of each program that is compiled.

    Example:
        >>> import jax.numpy as jnp
        >>> with observe_compilations(lambda traced: print(traced.fun_name)):
        ...     _ = compile_program(jnp.sin, [jnp.ones(8)])
        sin
    """
    _OBSERVERS.append(observer)
    try:
        yield
    finally:
        _OBSERVERS.remove(observer)


def compile_program(
    program: Callable[..., Any], arguments: Any, **jit: Any
) -> tuple[Any, dict[str, Any]]:
    """Compiles one program for its arguments: arrays, or ``jax.ShapeDtypeStruct`` of them.

    Args:
        program: Function of arrays.
        arguments: Its arguments.
        **jit: Further arguments of ``jax.jit``.

    Returns:
        The compiled program, and ``compile_seconds``, ``temporary_bytes`` (peak, without
        arguments and results), ``total_bytes`` (with them).
    """
    jax.clear_caches()  # an earlier trace would reduce the compile time
    begin = time.perf_counter()
    traced = jax.jit(program, **jit).trace(*arguments)
    compiled = traced.lower().compile()
    seconds = time.perf_counter() - begin
    for observer in _OBSERVERS:
        observer(traced)
    memory: Any = compiled.memory_analysis()
    total = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    total += memory.output_size_in_bytes - memory.alias_size_in_bytes
    return compiled, {
        "compile_seconds": seconds,
        "temporary_bytes": memory.temp_size_in_bytes,
        "total_bytes": total,
    }


class Prepared(NamedTuple):
    """Compiled programs, and the cost of compiling them.

    Attributes:
        programs: Programs that may run, by name.
        facts: Results of ``compile_program`` by name, for all programs.
    """

    programs: dict[str, Any]
    facts: dict[str, dict[str, Any]]


def prepare(
    programs: Mapping[str, Callable[..., Any]],
    arguments: Any,
    memory_limit: float | None = None,
) -> Prepared:
    """Compiles programs for the same arguments.

    A program that needs more temporary bytes than ``memory_limit``, or does not compile on this
    device, is not run; its facts hold the reason as ``not_run``.
    """
    compiled: dict[str, Any] = {}
    facts: dict[str, dict[str, Any]] = {}
    for name, program in programs.items():
        try:
            runnable, facts[name] = compile_program(program, arguments)
        except RuntimeError as error:
            facts[name] = {"not_run": f"does not compile: {str(error).splitlines()[0]}"}
            continue
        needed = facts[name]["temporary_bytes"]
        if memory_limit is not None and needed > memory_limit:
            facts[name]["not_run"] = f"needs {needed / 1e9:.1f} GB"
        else:
            compiled[name] = runnable
    return Prepared(compiled, facts)


def compare(
    programs: Mapping[str, Callable[..., Any]] | Prepared,
    arguments: Any,
    rounds: int,
    *,
    seconds: float | None = None,
    memory_limit: float | None = None,
    tokens: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Compiles all programs, then runs them in turns; see ``run_in_turns``.

    Args:
        programs: Functions of the same arguments by name, or the result of ``prepare``.
        arguments: Arguments of all programs.
        rounds: Times that each program is run; 0 only compiles.
        seconds: Time limit after which no round begins, once there are three.
        memory_limit: Maximum temporary bytes of a program that is run.
        tokens: Tokens of a call, for ``tokens_per_second``.

    Returns:
        For each program the results of ``compile_program``, ``milliseconds`` (median, least and
        most) and ``tokens_per_second``; or ``not_run``, the reason, instead of the times.

    Raises:
        ValueError: If there are no programs, or ``rounds`` is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> results = compare({"sin": jnp.sin, "cos": jnp.cos}, [jnp.ones(8)], rounds=3)
        >>> sorted(results["sin"])[:3]
        ['compile_seconds', 'milliseconds', 'temporary_bytes']
    """
    if not programs or rounds < 0:
        raise ValueError("expected at least one program, and rounds >= 0.")
    if not isinstance(programs, Prepared):
        programs = prepare(programs, arguments, memory_limit)
    results = {name: dict(facts) for name, facts in programs.facts.items()}
    for name, times in run_in_turns(programs.programs, arguments, rounds, seconds).items():
        results[name]["milliseconds"] = spread(times)
        if tokens is not None:
            results[name]["tokens_per_second"] = 1e3 * tokens / statistics.median(times)
    return results


def run_in_turns(
    programs: Mapping[str, Callable[..., Any]],
    arguments: Any,
    rounds: int,
    seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Runs programs in turns, each round beginning with another program.

    In each turn a program runs twice and the second time counts, unless it takes over a second:
    freeing the gigabytes of the previous program takes longer than a fast program runs.

    Args:
        programs: Compiled functions of the same arguments, by name.
        arguments: Arguments of all programs.
        rounds: Times that each program is run.
        seconds: Time limit after which no round begins, once there are three.
        clock: Clock in seconds. ``time.process_time`` leaves out other work on the same core; it
            adds up the cores of this process, and does not measure accelerators.

    Returns:
        Milliseconds of every run; nothing for 0 rounds.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> times = run_in_turns({"sin": jax.jit(jnp.sin)}, [jnp.ones(8)], rounds=2)
        >>> len(times["sin"])
        2
    """
    if not rounds:
        return {}
    times: dict[str, list[float]] = {name: [] for name in programs}
    names = list(programs)
    start = time.perf_counter()
    for turn in range(rounds):
        late = seconds is not None and time.perf_counter() - start > seconds
        if late and turn >= MIN_ROUNDS:
            break
        first = turn % max(1, len(names))
        for name in names[first:] + names[:first]:
            if turn == 0 or times[name][-1] < SLOW:
                jax.block_until_ready(programs[name](*arguments))
            begin = clock()
            jax.block_until_ready(programs[name](*arguments))
            times[name].append(1e3 * (clock() - begin))
    return times


def spread(values: list[float]) -> dict[str, float]:
    """Median, minimum and maximum of some numbers.

    Example:
        >>> spread([3.0, 1.0, 2.0])
        {'median': 2.0, 'min': 1.0, 'max': 3.0}
    """
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def normal(*shapes: tuple[int, ...]) -> list[Array]:
    """Standard normal float32 arrays of a fixed seed.

    Example:
        >>> [x.shape for x in normal((2, 3), (4,))]
        [(2, 3), (4,)]
    """
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), np.float32) for shape in shapes]


def communication_bytes(compiled: Any) -> dict[str, int]:
    """Bytes that the collective operations of a compiled program leave on each device, by kind.

    Operations in a loop count once.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> communication_bytes(jax.jit(jnp.sum).lower(jnp.ones(8)).compile())
        {}
    """
    received: dict[str, int] = {}
    for result, kind in _OPERATION.findall(compiled.as_text()):
        for name, bits, shape in _ARRAY.findall(result):
            size = 1 if name == "pred" else int(bits) // 8
            size *= math.prod(int(n) for n in shape.split(",") if n)
            received[kind] = received.get(kind, 0) + size
    return received
