"""Facts of the pages for contributors: files, `make` targets and modules that they name exist."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "docs/extending.md")
MAX_WORDS = {"CONTRIBUTING.md": 1_200}


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    named = re.findall(r"`((?:flax_linattn|tests|experiments|docs|\.ci)/[\w/.-]+)`", text(page))
    assert len(named) > 2 or page == "SECURITY.md"
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_named_targets_and_modules_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z][a-z-]+)`", text(page)))
    assert [name for name in targets if f"\n{name}:" not in makefile] == []
    modules = re.findall(r"python -m ((?:tests|experiments)[\w.]*\w)(?![\w<])", text(page))
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("page", MAX_WORDS)
def test_length(page):
    assert len(text(page).split()) <= MAX_WORDS[page]


def text(page):
    return (ROOT / page).read_text()
