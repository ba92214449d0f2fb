"""The contract of every mechanism on this device, within the tolerances of the tests.

    python -m experiments.accelerator.checks

Checks and tolerances are the same as in ``tests/contract``. They compare:

- the reference with the equations in NumPy;
- the loop of steps with the reference, in float64, so a stream equals the parallel computation;
- each form with both, from an initial state, with padding and segments;
- float32 with the float64 reference, with normal scores and with scores of +-1e4;
- half precision with the float64 reference.

Each compares outputs, states and gradients. Errors are relative to the largest expected magnitude.
Needs pytest (the extra ``accelerator``) and the tests of the repository.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

Check = Callable[[], None]
LENGTH = 11
"""Tokens of a half, as most of the contract's."""
DTYPES = ("float64", "float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the checks at one scale.

    Attributes:
        mechanisms: with hyperparameters; default all.
        forms: default all.
        dtypes: of the forms.
    """

    mechanisms: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES


def measure(size: Size, journal: Journal) -> None:
    cases = contract().cases
    for spec, mechanism in cases.MADE.items():
        if size.mechanisms and spec not in size.mechanisms:
            continue
        for name, checks in make_checks(mechanism, size):
            key = {"mechanism": spec, "check": name}
            journal.row(key, partial(run, checks))
        jax.clear_caches()


def contract() -> Any:
    """The package of the contract tests, all of its modules loaded.

    Raises:
        SystemExit: it or pytest is not here.
    """
    try:
        import tests.contract
        import tests.contract.test_precision
        import tests.contract.test_reference
    except ImportError as error:
        raise SystemExit(
            f"the checks run tests/contract ({error}): pip install pytest, and run them from the "
            "top of the repository."
        ) from None
    return tests.contract


def make_checks(mechanism: Any, size: Size) -> Iterator[tuple[str, dict[str, Check]]]:
    """Yields the name of each group of checks, with the checks by dtype."""
    tests = contract()
    cases, forms, precision = tests.cases, tests.test_forms, tests.test_precision
    can = mechanism.capabilities
    kind = forms.full_kind(mechanism)
    exact = "float64" in size.dtypes
    directions = [True] * can.causal + [False] * can.noncausal
    if exact:
        for is_causal in directions:
            equation = partial(
                tests.test_reference.test_the_reference_is_the_equation, mechanism, is_causal
            )
            yield f"reference = equation, {_words(is_causal)}", {"float64": equation}
        if can.causal and can.recurrent:
            steps = partial(forms.test_the_loop_of_step_is_the_reference, mechanism, LENGTH, kind)
            yield "steps = reference", {"float64": steps}
    for is_causal in directions:
        for form in cases.FORMS_OF[mechanism]:
            if size.forms and form not in size.forms:
                continue
            checks: dict[str, Check] = {
                "float64": partial(
                    forms.test_forms_are_the_loop_of_step, mechanism, is_causal, form, LENGTH, kind
                )
            }
            one = partial(precision.test_float32_is_the_reference, mechanism, is_causal, form)
            checks["float32"] = partial(one, "normal")
            checks["float32, scores of 1e4"] = partial(one, "large")
            if is_causal == can.causal:
                half = precision.test_forms_in_every_dtype
                dtype = jax.numpy.bfloat16
                checks["bfloat16"] = partial(half, mechanism, form, dtype, LENGTH)
            chosen = {n: c for n, c in checks.items() if n.partition(",")[0] in size.dtypes}
            yield f"{form}, {_words(is_causal)}", chosen


def _words(is_causal: bool) -> str:
    return "causal" if is_causal else "not causal"


def run(checks: dict[str, Check]) -> dict[str, Any]:
    """The error nearest to its tolerance for each dtype, and the reason of a failure."""
    recorded = contract().tolerances.recorded
    results: dict[str, Any] = {}
    for name, check in checks.items():
        if name == "float64" and jax.default_backend() == "tpu":
            results[name] = {"not_run": "a TPU computes no float64"}
            continue
        why = ""
        with recorded() as errors, jax.numpy_dtype_promotion("strict"):
            try:
                check()
            except AssertionError as error:
                why = str(error).strip().splitlines()[0]
        worst = max(errors, key=lambda one: one.error / one.tolerance, default=None)
        results[name] = {"failed": why, "compared": len(errors)}
        if worst is not None:
            results[name] |= worst._asdict()
    return {"dtypes": results}


def failures(rows: Rows) -> list[str]:
    """A sentence for each check that failed."""
    return [
        f"{row['mechanism']}, {row['check']}, {dtype}: {result['failed']}"
        for row in rows
        for dtype, result in row["dtypes"].items()
        if result.get("failed")
    ]


def table(rows: Rows, size: Size) -> str:
    failed = failures(rows)
    results = [result for row in rows for result in row["dtypes"].values()]
    compared = sum(result.get("compared", 0) for result in results)
    first = f"{len(results)} checks, {compared:,} arrays compared: {len(failed)} failed."
    names = list(dict.fromkeys(name for row in rows for name in row["dtypes"]))
    lines = [
        [row["mechanism"], row["check"], *(_cell(row["dtypes"].get(name)) for name in names)]
        for row in rows
    ]
    heads = ["mechanism", "check", *(f"{name}: error / tolerance" for name in names)]
    return "\n\n".join([first, *(f"- {line}" for line in failed), markdown(heads, lines)])


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "-"
    if "not_run" in result:
        return str(result["not_run"])
    if result["failed"]:
        return "**fails**"
    if "error" not in result:
        return "equal"
    return f"{result['error']:.1e} / {np.float64(result['tolerance']):.0e}"


EXPERIMENT = Measured(
    module="experiments.accelerator.checks",
    about="the contract of this library, which its tests check on a CPU",
    sizes={"paper": Size()},
    measure=measure,
    table=table,
    left_out={"paper": "float16; several devices; a TPU computes no float64"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
