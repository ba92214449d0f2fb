"""Which modules make up the public interface: read from the package, listed nowhere else."""

import importlib
import pkgutil
import sys
from types import ModuleType

import flax_linattn


def public_modules() -> list[ModuleType]:
    """The package, each subpackage at any depth, and each top-level module that has ``__all__``.

    A subpackage whose names its parent exports, every one, is documented there.
    """
    found = [flax_linattn]
    for info in pkgutil.walk_packages(flax_linattn.__path__, "flax_linattn."):
        parts = info.name.split(".")[1:]
        if any(part.startswith("_") for part in parts):
            continue
        module = importlib.import_module(info.name)
        parent = sys.modules[info.name.rpartition(".")[0]]
        if set(getattr(module, "__all__", ())) <= set(getattr(parent, "__all__", ())):
            continue
        if info.ispkg or (len(parts) == 1 and hasattr(module, "__all__")):
            found.append(module)
    return found
