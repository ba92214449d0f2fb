"""Writes one API page for each public module before the build reads the sources."""

from pathlib import Path

from public_api import public_modules
from sphinx.application import Sphinx

PAGE = """\
# {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
```
"""


def write_pages(app: Sphinx) -> None:
    """Write the pages into ``api/``, and remove those of modules that are gone."""
    folder = Path(app.srcdir, "api")
    pages = {f"{module.__name__}.md": module.__name__ for module in public_modules()}
    for old in folder.glob("flax_linattn*.md"):
        if old.name not in pages:
            old.unlink()
    for file, name in pages.items():
        path, text = folder / file, PAGE.format(name=name)
        # An unchanged page keeps its time, so that Sphinx need not read it again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
