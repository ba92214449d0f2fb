"""Tutorials become notebooks that hold all examples of their pages."""

import doctest
import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
pytestmark = pytest.mark.skipif(
    not DOCS.is_dir(), reason="the documentation is not part of the installed package"
)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_has_the_examples_of_its_page(monkeypatch, page):
    monkeypatch.syspath_prepend(DOCS / "_ext")
    cells = importlib.import_module("notebooks").notebook(page.read_text())["cells"]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    examples = doctest.DocTestParser().get_examples(page.read_text().replace("\n```", "\n\n```"))
    assert "\n".join(code) == "".join(example.source for example in examples).rstrip("\n")
    for number, source in enumerate(code):
        compile(source, f"cell {number}", "exec")
    assert all("{doctest}" not in cell["source"] for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells)
