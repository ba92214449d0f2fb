"""Where the time of the tests goes: ``python -m tests.times REPORT.xml`` of pytest's --junitxml.

Prints the processor's seconds by folder, which other jobs of the machine hardly change, and the
most expensive tests. It fails where the whole takes more than ``MINUTES`` of two cores, or a folder
more than its share of the whole.

Neither limit depends on how busy a machine is, nor on how fast: the seconds are a processor's,
those of ``MINUTES`` are of the machine that the limits were set on, and a machine that takes longer
over a fixed piece of work may take longer over the tests. Test processes do this work once a
minute, because a shared machine may be twice as fast after the tests as during them. Shares hold
where all was compiled (``make test-times``); with ``--warm``, for a run that found programs of an
earlier one, what was compiled differs from run to run and the whole alone is judged.
"""

import argparse
import ast
import inspect
import re
import statistics
import sys
import time
from collections import Counter
from typing import NamedTuple
from xml.etree import ElementTree

MINUTES = 20.0
"""The most that ``make test`` may take on two cores of the reference machine, its programs not yet
compiled: 2,400 s of a processor. CI took 1,110 s of two cores at e358e7cb. The goal is 10."""

CORES = 2

REFERENCE_SECONDS = 0.5 / 14
"""What ``work`` takes on the reference machine (AMD EPYC, AVX-512), alone and idle otherwise."""

SHARES = {
    "tasks": 38,
    "models": 27,
    "ops": 21,
    "training": 11,
    "contract": 15,
    "nn": 9,
    "experiments": 5,
    "package": 4,
    "data": 4,
    "inference": 8,
    "docs": 2,
    "estimators": 2,
    "fuzz": 2,
    "bench": 2,
}
"""Percent of all seconds, about a quarter more than a folder took when its share was set;
``package`` are the doctests that are fast. As measured at cc4aace."""

DEFAULT_SHARE = 1
"""Percent of a folder, or of a module beside the folders, that ``SHARES`` does not name."""


class Times(NamedTuple):
    """What a report says.

    Attributes:
        folders: a processor's seconds by folder.
        functions: the same by test function.
        whole: how long all tests took, in seconds.
        work: what ``work`` took while they ran, in a processor's seconds.
    """

    folders: Counter[str]
    functions: Counter[str]
    whole: float
    work: list[float]


def read(path: str) -> Times:
    """Reads a report of pytest."""
    work: list[float] = []
    folders: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    (suite,) = ElementTree.parse(path).getroot().iter("testsuite")
    for case in suite.iter("testcase"):
        place = re.sub(r"(\.Test\w+)+$", "", case.get("classname", ""))
        if not place:
            continue  # a module that was skipped as a whole
        _, *folder, module = place.split(".")
        name = re.sub(r"\[.*", "", case.get("name", ""))
        own = {each.get("name"): float(each.get("value", 0)) for each in case.iter("property")}
        seconds = own.get("processor_seconds", 0.0)
        work += [own["work_seconds"]] if "work_seconds" in own else []
        folders[folder[0] if folder else module.removeprefix("test_")] += seconds
        functions["/".join([*folder, f"{module}::{name}"])] += seconds
    return Times(folders, functions, float(suite.get("time", 0)), work)


def work() -> None:
    """A bit of what tests do most: Python that walks and rebuilds trees."""
    ast.unparse(ast.parse(inspect.getsource(argparse)))


def work_seconds() -> float:
    """A processor's seconds of ``work``, the least of three."""
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def slowness(work: list[float]) -> float:
    """How many times as long as the reference machine a machine took; at least 1.

    Args:
        work: Seconds of ``work``, of which the median counts; if there are none, it is done now.
    """
    return max(1.0, statistics.median(work or [work_seconds()]) / REFERENCE_SECONDS)


def faults(folders: Counter[str], factor: float = 1.0, *, warm: bool = False) -> list[str]:
    """What is too much, a line each, on a machine that takes ``factor`` times as long."""
    total = max(sum(folders.values()), 1e-9)
    lines = []
    for folder, seconds in folders.items():
        share = 100 * seconds / total
        limit = SHARES.get(folder, DEFAULT_SHARE)
        if share > limit and not warm:
            lines.append(
                f"{folder}: {share:.0f} % of the seconds, at most {limit}. Let its tests share "
                "programs (CONTRIBUTING.md), or raise its share and say why."
            )
    limit = 60 * MINUTES * CORES * factor
    if total > limit:
        lines.append(
            f"the whole: {total:.0f} s of a processor, at most {limit:.0f}: {MINUTES:.0f} minutes "
            f"of {CORES} cores, {factor:.2f} times as slow as the reference machine."
        )
    return lines


def main(path: str, *, warm: bool = False) -> int:
    folders, functions, whole, work = read(path)
    total = max(sum(folders.values()), 1e-9)
    print(f"{'folder':12} {'seconds':>8} {'%':>5}  at most")
    for folder, seconds in folders.most_common():
        share = SHARES.get(folder, DEFAULT_SHARE)
        print(f"{folder:12} {seconds:8.0f} {100 * seconds / total:5.1f}  {share}")
    print(f"{'all':12} {total:8.0f}        in {whole / 60:.1f} minutes\n")
    for name, seconds in functions.most_common(15):
        print(f"{seconds:8.1f}  {name}")
    factor = slowness(work)
    print(f"\nThis machine took {factor:.2f} times as long as the reference machine.")
    found = faults(folders, factor, warm=warm)
    print("".join(f"\n{line}" for line in found), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    warm = "--warm" in arguments
    paths = [argument for argument in arguments if argument != "--warm"]
    if len(paths) != 1:
        sys.exit(
            "usage: python -m tests.times [--warm] REPORT.xml, of pytest --junitxml=REPORT.xml"
        )
    sys.exit(main(paths[0], warm=warm))
