"""Which modules make up the public interface: read from the package, listed nowhere else."""

import importlib
import pkgutil
from types import ModuleType

import flax_linattn


def public_modules() -> list[ModuleType]:
    """The package, each subpackage at any depth, and each top-level module that has ``__all__``."""
    found = [flax_linattn]
    for info in pkgutil.walk_packages(flax_linattn.__path__, "flax_linattn."):
        parts = info.name.split(".")[1:]
        if any(part.startswith("_") for part in parts):
            continue
        module = importlib.import_module(info.name)
        if info.ispkg or (len(parts) == 1 and hasattr(module, "__all__")):
            found.append(module)
    return found
