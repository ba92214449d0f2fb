"""Where the time of the tests goes: ``python -m tests.times REPORT.xml`` of pytest's --junitxml.

Prints the processor's seconds by folder, which other jobs of the machine hardly change, and the
most expensive tests. It fails where a folder takes more of the whole than its share, or the whole
more than ``MINUTES`` of the clock. Shares do not depend on how fast a machine is; each has about a
quarter more than it took when it was set. A suite that grew everywhere alike is told by ``MINUTES``
alone.
"""

import re
import sys
from collections import Counter
from xml.etree import ElementTree

MINUTES = 10.0
"""The most that ``make test`` may take on two cores, its programs not yet compiled."""

SHARES = {
    "tasks": 31,
    "contract": 22,
    "models": 21,
    "ops": 20,
    "nn": 8,
    "training": 6,
    "inference": 4,
    "experiments": 4,
    "data": 4,
    "package": 2,
    "estimators": 2,
    "docs": 2,
    "bench": 1,
    "control": 1,
    "moved": 1,
    "layers": 1,
    "cli": 1,
    "checkpoint": 1,
    "storage": 1,
    "checks": 1,
}
"""Per cent of all seconds; ``package`` are the doctests that are fast. As measured at 78419fa."""


def read(path: str) -> tuple[Counter[str], Counter[str], float]:
    """A processor's seconds by folder and by test function, and how long the whole took."""
    folders: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    (suite,) = ElementTree.parse(path).getroot().iter("testsuite")
    for case in suite.iter("testcase"):
        place = re.sub(r"(\.Test\w+)+$", "", case.get("classname", ""))
        if not place:
            continue  # a module that was skipped as a whole
        _, *folder, module = place.split(".")
        name = re.sub(r"\[.*", "", case.get("name", ""))
        spent = case.find("properties/property[@name='processor_seconds']")
        seconds = 0.0 if spent is None else float(spent.get("value", 0))
        folders[folder[0] if folder else module.removeprefix("test_")] += seconds
        functions["/".join([*folder, f"{module}::{name}"])] += seconds
    return folders, functions, float(suite.get("time", 0))


def faults(folders: Counter[str], whole: float) -> list[str]:
    """What is too much, a line each."""
    total = max(sum(folders.values()), 1e-9)
    lines = []
    for folder, seconds in folders.items():
        share = 100 * seconds / total
        if folder not in SHARES:
            lines.append(f"{folder}: has no share yet; give it one in SHARES of tests/times.py.")
        elif share > SHARES[folder]:
            lines.append(
                f"{folder}: {share:.0f} % of the seconds, at most {SHARES[folder]}. Let its tests "
                "share programs (CONTRIBUTING.md), or raise its share and say why."
            )
    if whole > 60 * MINUTES:
        lines.append(f"the whole: {whole / 60:.1f} minutes, at most {MINUTES:.0f} on two cores.")
    return lines


def main(path: str) -> int:
    folders, functions, whole = read(path)
    total = max(sum(folders.values()), 1e-9)
    print(f"{'folder':12} {'seconds':>8} {'%':>5}  at most")
    for folder, seconds in folders.most_common():
        share = SHARES.get(folder, "none")
        print(f"{folder:12} {seconds:8.0f} {100 * seconds / total:5.1f}  {share}")
    print(f"{'all':12} {total:8.0f}        {whole / 60:.1f} minutes of at most {MINUTES:.0f}\n")
    for name, seconds in functions.most_common(15):
        print(f"{seconds:8.1f}  {name}")
    found = faults(folders, whole)
    print("".join(f"\n{line}" for line in found), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.times REPORT.xml, from pytest --junitxml=REPORT.xml")
    sys.exit(main(sys.argv[1]))
