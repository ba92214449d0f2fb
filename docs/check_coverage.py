"""Fail if a public name has no docstring, or is missing from the built documentation.

Usage: python docs/check_coverage.py docs/_build/html/objects.inv
"""

import inspect
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from public_api import public_modules


def documented_names(inventory: Path) -> set[str]:
    """The Python names in a Sphinx inventory: four header lines, then compressed lines."""
    body = zlib.decompress(inventory.read_bytes().split(b"\n", 4)[4]).decode()
    entries = (line.split(" ", 2) for line in body.splitlines())
    return {entry[0] for entry in entries if entry[1].startswith("py:")}


def has_own_docstring(value: object) -> bool:
    """Whether someone wrote a docstring: a dataclass or named tuple without one is given one."""
    doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    generated = inspect.isclass(value) and (doc or "").startswith(f"{value.__name__}(")
    return bool(doc and doc.strip()) and not generated


def problems(documented: set[str]) -> Iterator[str]:
    """One line for each gap."""
    for module in public_modules():
        where = module.__name__
        if not (module.__doc__ or "").strip():
            yield f"{where}: the module has no docstring"
        if not hasattr(module, "__all__"):
            yield f"{where}: a public package must list its names in __all__"
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.ismodule(value) or name == "__version__":
                continue
            # Constants and type aliases have no docstring: the inventory tells of them.
            function = inspect.isroutine(inspect.unwrap(value))
            defined_class = inspect.isclass(value) and value.__name__ == name
            if (function or defined_class) and not has_own_docstring(value):
                yield f"{where}.{name}: no docstring"
            if f"{where}.{name}" not in documented:
                yield f"{where}.{name}: not in the built documentation"
            if defined_class:
                yield from method_problems(value, f"{where}.{name}", documented)


def method_problems(owner: type, where: str, documented: set[str]) -> Iterator[str]:
    """One line for each public method or property without a docstring, its own or inherited."""
    for name, value in vars(owner).items():
        wrapped = isinstance(value, (property, classmethod, staticmethod))
        if name.startswith("_") or not (wrapped or inspect.isfunction(value)):
            continue
        if not (inspect.getdoc(getattr(owner, name)) or "").strip():
            yield f"{where}.{name}: no docstring"
        elif f"{where}.{name}" not in documented:
            yield f"{where}.{name}: not in the built documentation"


def main() -> int:
    """Print the gaps; 1 if there are any."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        print(__doc__, file=sys.stderr)
        return 2
    documented = documented_names(Path(sys.argv[1]))
    gaps = list(problems(documented))
    for gap in gaps:
        print(gap, file=sys.stderr)
    print(f"public names: {len(gaps)} gaps, {len(documented)} documented names")
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main())
