"""Programs timed in turns."""

import itertools
from typing import Any

import jax.numpy as jnp
import pytest

from flax_linattn.bench import compare, forward_and_backward, normal, run_in_turns


def test_comparing() -> None:
    program = forward_and_backward(lambda q, k, v: jnp.cumsum(q * k, axis=1) @ v)
    arrays = normal((1, 11, 4), (1, 11, 4), (1, 4, 4))
    facts = compare({"sums": program}, arrays, rounds=2, tokens=11)["sums"]
    times = facts["milliseconds"]
    assert 0 < times["min"] <= times["median"] <= times["max"]
    assert facts["total_bytes"] > facts["temporary_bytes"] > 0
    assert facts["tokens_per_second"] == pytest.approx(11e3 / times["median"])


def test_what_needs_too_much_memory_is_not_run() -> None:
    x = jnp.ones(1024)
    programs = {"outer": lambda x: jnp.sort(jnp.outer(x, x)).sum(), "sum": jnp.sum}
    facts = compare(programs, [x], rounds=1, memory_limit=1e6)
    assert facts["outer"]["not_run"] == "needs 0.0 GB" and "milliseconds" not in facts["outer"]
    assert "milliseconds" in facts["sum"]


def test_what_does_not_compile_is_not_run() -> None:
    def refused(x: Any) -> Any:
        raise NotImplementedError("not on this device\nat all")

    facts = compare({"sum": jnp.sum, "refused": refused}, [jnp.ones(4)], rounds=1)
    assert facts["refused"] == {"not_run": "does not compile: not on this device"}
    assert "milliseconds" in facts["sum"]


def test_nothing_is_run_in_no_rounds() -> None:
    facts = compare({"sum": jnp.sum}, [jnp.ones(4)], rounds=0)
    assert set(facts["sum"]) == {"compile_seconds", "temporary_bytes", "total_bytes"}


def test_turns_begin_with_another_program() -> None:
    order: list[str] = []

    def called(name: str) -> None:
        order.append(name)

    programs = {name: (lambda name=name: called(name)) for name in "ab"}
    assert len(run_in_turns(programs, (), rounds=2)["a"]) == 2
    assert "".join(order) == "aabb" + "bbaa"


def test_late_rounds_are_left_out() -> None:
    times = run_in_turns({"nothing": lambda: None}, (), rounds=50, seconds=0.0)
    assert len(times["nothing"]) == 3


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one program"):
        compare({}, [], rounds=1)


def test_another_clock_tells_the_time() -> None:
    seconds = itertools.count()
    times = run_in_turns({"nothing": lambda: None}, (), rounds=3, clock=lambda: next(seconds))
    assert times == {"nothing": [1000.0] * 3}
