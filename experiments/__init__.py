"""Experiments of the papers, one folder for each kind of figure or table.

A module with an ``EXPERIMENT`` is an experiment: a ``measured.Measured``, whose rows are timed or
counted, or a ``tables.Table`` of trained runs. The description provides its command and its page,
and includes it in ``experiments.report``.
"""

import re
import sys
from importlib import metadata
from types import TracebackType

REQUIREMENT = re.compile(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""")


def extra_line(package: str) -> str:
    """The line on a package that is missing, with the extra that installs it."""
    try:
        requirements = metadata.requires("flax-linattn") or []
    except metadata.PackageNotFoundError:
        requirements = []
    pairs = [match.groups() for match in map(REQUIREMENT.match, requirements) if match]
    extras = [extra for name, extra in pairs if name.replace("-", "_") == package]
    extra = min(extras, key=[extra for _, extra in pairs].count, default="")
    install = f"'flax-linattn[{extra}]'" if extra else package
    return f"error: this experiment needs {package}: pip install {install}"


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints one line in place of the traceback of a missing package."""
    if isinstance(error, ModuleNotFoundError) and error.name and "linattn" not in error.name:
        print(extra_line(error.name.partition(".")[0]), file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # python -m experiments.X imports this package first
    sys.excepthook = _explain
