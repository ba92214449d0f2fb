"""Where the time of the tests goes: ``python -m tests.times REPORT.xml`` of pytest's --junitxml.

Prints the seconds by folder and the dearest tests, and fails where a folder takes more of the whole
than its share, or the whole more than ``MINUTES``. Shares do not depend on how fast a machine is;
each has about a quarter more than it took when it was set. A suite that grew everywhere alike is
told by ``MINUTES`` alone.
"""

import re
import sys
from collections import Counter
from xml.etree import ElementTree

MINUTES = 10.0
"""The most that ``make test`` may take on two cores, its programs not yet compiled."""

SHARES = {
    "contract": 40,
    "ops": 15,
    "tasks": 15,
    "models": 15,
    "training": 15,
    "package": 10,
    "nn": 10,
    "inference": 8,
    "experiments": 8,
    "data": 4,
    "bench": 4,
    "docs": 2,
}
"""Per cent of all seconds; ``package`` are the doctests."""


def read(path: str) -> tuple[Counter[str], Counter[str], float]:
    """Seconds by folder and by test function, and how long the whole took."""
    folders: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    (suite,) = ElementTree.parse(path).getroot().iter("testsuite")
    for case in suite.iter("testcase"):
        _, *folder, module = re.sub(r"\.Test\w+$", "", case.get("classname", "")).split(".")
        name = re.sub(r"\[.*", "", case.get("name", ""))
        seconds = float(case.get("time", 0))
        folders[folder[0] if folder else module.removeprefix("test_")] += seconds
        functions["/".join([*folder, f"{module}::{name}"])] += seconds
    return folders, functions, float(suite.get("time", 0))


def main(path: str) -> int:
    folders, functions, whole = read(path)
    total = sum(folders.values())
    print(f"{'folder':12} {'seconds':>8} {'%':>5}  of at most")
    for folder, seconds in folders.most_common():
        print(f"{folder:12} {seconds:8.0f} {100 * seconds / total:5.1f}  {SHARES.get(folder, 0)}")
    print(f"{'all':12} {total:8.0f}        in {whole / 60:.1f} of {MINUTES:.0f} minutes\n")
    for name, seconds in functions.most_common(15):
        print(f"{seconds:8.1f}  {name}")
    too_much = [f for f, seconds in folders.items() if 100 * seconds > total * SHARES.get(f, 0)]
    if too_much:
        names = ", ".join(too_much)
        print(f"\nMore than its share, or without one in SHARES: {names}.", file=sys.stderr)
    if whole > 60 * MINUTES:
        print(f"\nThe tests took more than {MINUTES:.0f} minutes.", file=sys.stderr)
    return int(bool(too_much) or whole > 60 * MINUTES)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
