"""Packages whose public names are imported when they are used, as in SPEC 1 of Scientific Python.

A package has many names, and a program or a command uses few of them. The stub ``__init__.pyi`` of
such a package imports all of them, for type checkers; ``attach_stub`` reads from it which module
defines each name.
"""

from __future__ import annotations

import ast
import importlib.resources
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def attach_stub(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Makes ``__getattr__``, ``__dir__`` and ``__all__`` of a package from its stub.

    Args:
        package: ``__name__`` of the package; its submodules are attributes, too.

    Example:
        >>> from flax_linattn import training
        >>> training.fit.__module__
        'flax_linattn.training.fit_runs'
    """
    text = importlib.resources.files(package).joinpath("__init__.pyi").read_text(encoding="utf-8")
    homes = {
        alias.name: str(line.module)
        for line in ast.parse(text).body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            return import_submodule(package, name)
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes}), [*homes]


def import_submodule(package: str, name: str) -> ModuleType:
    """Imports a submodule, which also becomes an attribute of its package.

    Raises:
        AttributeError: If the package has no such module.
    """
    if not (name.isidentifier() and importlib.util.find_spec(f"{package}.{name}")):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")
