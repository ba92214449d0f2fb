"""The README's table of mechanisms is the registry's."""

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(
    not DOCS.is_dir(), reason="the documentation is not part of the installed package"
)


def test_the_table_is_that_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    readme_table = importlib.import_module("readme_table")
    text = readme_table.README.read_text()
    assert text == readme_table.written(text), "the registry has changed: run `make readme`"
    assert readme_table.human(2_344) == "2.3 kB" and readme_table.human(133_120) == "133 kB"
    with pytest.raises(ValueError, match="must have the lines '<!-- from the registry"):
        readme_table.written("no table")
