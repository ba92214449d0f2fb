"""Writes one API page for each public module before the build reads the sources."""

import inspect
import sys
import textwrap
from pathlib import Path
from types import ModuleType

from public_api import public_modules
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

PAGE = """\
# {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
{constants}```
"""


def constants(module: ModuleType) -> str:
    """Entries for the constants and type aliases that a package exports from its own modules.

    Autodoc reads a constant's comment (``#:``, or a string below it) only where it is defined. It
    finds another name of a class by itself.
    """
    comments = {
        name: text
        for key in sorted(sys.modules)
        if key.startswith(f"{module.__name__}.")
        for (owner, name), text in ModuleAnalyzer.for_module(key).find_attr_docs().items()
        if not owner
    }
    entries = [
        f"\n.. py:data:: {name}\n\n" + textwrap.indent("\n".join(comments[name]), "   ")
        for name in getattr(module, "__all__", ())
        if name in comments and not inspect.isclass(getattr(module, name))
    ]
    return "".join(entries)


def write_pages(app: Sphinx) -> None:
    """Write the pages into ``api/``, and remove those of modules that are gone."""
    folder = Path(app.srcdir, "api")
    pages = {
        f"{module.__name__}.md": PAGE.format(name=module.__name__, constants=constants(module))
        for module in public_modules()
    }
    for old in folder.glob("flax_linattn*.md"):
        if old.name not in pages:
            old.unlink()
    for file, text in pages.items():
        path = folder / file
        # An unchanged page keeps its time, so that Sphinx need not read it again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
