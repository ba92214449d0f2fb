"""Writes each tutorial as a Jupyter notebook, and puts a link to it on the page.

A code cell holds the examples of a ``{doctest}`` block up to one that shows a result, and that
result is the cell's output. The tests run the same examples from the page.
"""

import doctest
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

FOLDER = "tutorials"
FENCE = re.compile(r"^(```+|:::+)(.*?)\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r"\{[\w:]+\}`(?:([^`<]*?) <[^`>]*>|[~.]*([^`]*))`")
LINK = re.compile(r"\[([^\]]*)\]\((?!http)[^)]*\)")


def notebook(text: str) -> dict[str, Any]:
    """Convert a page in MyST Markdown to a notebook (nbformat 4.5)."""
    cells: list[dict[str, Any]] = []
    end = 0
    for fence in FENCE.finditer(text):
        cells += _markdown(text[end : fence.start()])
        end = fence.end()
        if fence[2] == "{doctest}":
            cells += _code(fence[3])
        elif not fence[2].startswith("{"):
            cells += _markdown(fence[0])
    cells += _markdown(text[end:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _markdown(text: str) -> list[dict[str, Any]]:
    """A Markdown cell without roles and links of the site; none for white space."""
    text = ROLE.sub(lambda role: f"`{role[1] or role[2]}`", text)
    text = LINK.sub(r"\1", text).strip()
    return [{"cell_type": "markdown", "metadata": {}, "source": text}] if text else []


def _code(block: str) -> list[dict[str, Any]]:
    """The cells of a block, each of which ends with the result that it shows."""
    cells: list[dict[str, Any]] = []
    lines: list[str] = []
    examples = doctest.DocTestParser().get_examples(block)
    for number, example in enumerate(examples):
        lines.append(example.source)
        if example.want or number == len(examples) - 1:
            source = "".join(lines).rstrip("\n")
            shown = {"data": {"text/plain": example.want.rstrip("\n")}, "metadata": {}}
            outputs = [shown | {"output_type": "execute_result", "execution_count": None}]
            cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "source": source}
            cells.append(cell | {"outputs": outputs if example.want else []})
            lines = []
    return cells


def write_notebooks(app: Sphinx) -> None:
    """Write ``notebooks/NAME.ipynb`` for each tutorial."""
    folder = Path(app.srcdir, "notebooks")
    folder.mkdir(exist_ok=True)
    for page in sorted(Path(app.srcdir, FOLDER).glob("*.md")):
        text = json.dumps(notebook(page.read_text()), indent=1) + "\n"
        path = folder / f"{page.stem}.ipynb"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def link_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put a link to the notebook below the title of a tutorial."""
    folder, _, name = docname.rpartition("/")
    if folder == FOLDER:
        title, rest = source[0].split("\n", 1)
        link = f"{{download}}`Download this page as a notebook <../notebooks/{name}.ipynb>`"
        source[0] = f"{title}\n\n{link}\n{rest}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("builder-inited", write_notebooks)
    app.connect("source-read", link_notebook)
    return {"parallel_read_safe": True}
