"""Experiments of the papers, one folder for each kind of figure or table.

A module with an ``EXPERIMENT`` is an experiment: a ``measured.Measured``, whose rows are timed or
counted, or a ``tables.Table`` of trained runs. The description provides its command and its page,
and includes it in ``experiments.report``.
"""

import re
import sys
from importlib import metadata
from types import TracebackType

PACKAGES = {"PIL": "pillow", "fla": "fla-core", "sklearn": "scikit-learn", "tslearn": "tslearn"}
"""What is installed by another name than it is imported by, or stands in no extra."""

REQUIREMENT = re.compile(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""")


def extra_line(package: str) -> str:
    """The line on a package that is missing, with the extra that installs it.

    Empty unless an experiment may do without the package: it stands in an extra or ``PACKAGES``.
    """
    name = PACKAGES.get(package, package)
    try:
        requirements = metadata.requires("flax-linattn") or []
    except metadata.PackageNotFoundError:
        requirements = []
    pairs = [match.groups() for match in map(REQUIREMENT.match, requirements) if match]
    extras = [extra for other, extra in pairs if _normal(other) == _normal(name)]
    if not extras and package not in PACKAGES:
        return ""
    extra = min(extras, key=[extra for _, extra in pairs].count, default="")
    install = f"'flax-linattn[{extra}]'" if extra else name
    return f"error: this experiment needs {package}: pip install {install}"


def _normal(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints one line in place of the traceback of a missing package."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (line := extra_line(missing)):
        print(line, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # python -m experiments.X imports this package first
    sys.excepthook = _explain
