"""Old names of modules and classes, which work until 0.3 and warn.

A line of ``MOVED`` is all that a module needs, or a package for all that is in it. Importing the
old name gives the module of the new one, the same object.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_OPS = "flax_linattn.ops"

MOVED = {
    "flax_linattn.checkpoint.sync": "flax_linattn.storage",
    **{
        f"flax_linattn.training.checkpoint.{name}": f"flax_linattn.checkpoint.{name}"
        for name in ("arrays", "checked_json", "renamed")
    },
    f"{_OPS}.baselines": f"{_OPS}.mechanisms",
    f"{_OPS}.baselines.draws": f"{_OPS}.engine.draws",
    f"{_OPS}.baselines.hedgehog": f"{_OPS}.mechanisms.taylor_features",
    **{f"{_OPS}.{name}": f"{_OPS}.contract.{name}" for name in ("masks", "mechanism", "numerics")},
    **{
        f"{_OPS}.{name}": f"{_OPS}.engine.{name}"
        for name in (
            "blocks",
            "cache",
            "channelwise",
            "chunks",
            "exponential",
            "exponential_scan",
            "features",
            "forms",
            "kernel",
            "kernel_scan",
            "prefix",
            "scored",
            "series",
            "series_scan",
            "shards",
            "stateless",
            "streaming",
            "tiles",
        )
    },
    "flax_linattn.data.blocks": "flax_linattn.data.digits",
    **{
        f"{_OPS}.{name}": f"{_OPS}.mechanisms.{name}"
        for name in ("aaren", "elementwise", "expressive", "softmax", "taylorshift")
    },
}
"""Old name -> new name, since 2026-11-23 and until 0.3.

A module of the name of a function beside it, such as ``ops.weights``, cannot be here: importing the
module would hide the function."""


class MovedFinder(MetaPathFinder, Loader):
    """Finds what ``MOVED`` lists; of all other names it knows nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The old name's spec, and the warning, at the line that imports it."""
        new = new_name(fullname)
        if new is None:
            return None
        warnings.warn(_message(fullname, new), DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of the new name in the place of ``module``, as a module may."""
        new = new_name(module.__name__)
        if new is not None:
            sys.modules[module.__name__] = importlib.import_module(new)


def new_name(name: str) -> str | None:
    """What ``MOVED`` says of a module or of the package that it is in.

    Example:
        >>> new_name("flax_linattn.ops.baselines.linear")
        'flax_linattn.ops.mechanisms.linear'
        >>> new_name("flax_linattn.ops.contract.masks") is None
        True
    """
    package, rest = name, ""
    while package:
        if package in MOVED:
            return MOVED[package] + rest
        package, dot, last = package.rpartition(".")
        rest = dot + last + rest
    return None


def old_names(module: str, **renamed: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module: the old names of what it holds, which warn.

    Args:
        module: its ``__name__``.
        **renamed: old name = new name.
    """

    def find(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = renamed[name]
        warnings.warn(_message(f"{module}.{name}", f"{module}.{new}"), DeprecationWarning, 2)
        return getattr(sys.modules[module], new)

    return find


def _message(old: str, new: str) -> str:
    return f"{old} is {new} since 2026-11-23; the old name goes with 0.3."


def install() -> None:
    """Lets imports ask for old names first: the folder of a new package would answer otherwise."""
    sys.meta_path.insert(0, MovedFinder())
