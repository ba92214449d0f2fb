"""Facts of the pages at the top: links, files, targets, modules, limits and licenses."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from flax_linattn import compilation
from flax_linattn.data.sets.catalog import CATALOG
from tests import test_language, times

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOR_CONTRIBUTORS = ("CONTRIBUTING.md", "SECURITY.md", "docs/extending.md")
MAX_WORDS = {"README.md": 900, "CONTRIBUTING.md": 1_100}
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the documentation is not part of the installed package"
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    broken = []
    for path, anchor in LINK.findall((ROOT / name).read_text()):
        target = ROOT / path if path else ROOT / name
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert not broken


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS)
def test_named_files_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:flax_linattn|tests|experiments|docs|\.ci)/[\w/.-]+)`", text)
    assert len(named) > 2 or page == "SECURITY.md"
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS)
def test_named_targets_and_modules_exist(page: str) -> None:
    text, makefile = (ROOT / page).read_text(), (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z][a-z-]+)`", text))
    assert [name for name in targets if f"\n{name}:" not in makefile] == []
    modules = re.findall(r"python -m ((?:tests|experiments)[\w.]*\w)(?![\w<])", text)
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("page", MAX_WORDS)
def test_length(page: str) -> None:
    words = (ROOT / page).read_text().split()
    assert len([word for word in words if re.search(r"\w", word)]) <= MAX_WORDS[page]


@pytest.mark.parametrize(
    "limit",
    [
        f"{times.MINUTES * times.CORES:.0f} processor minutes",
        f"at most {test_language.MAX_CHARACTERS} characters",
        f"at most {compilation.MAX_BYTES / 2**30:.0f} GB",
    ],
)
def test_limits_for_contributors(limit: str) -> None:
    assert limit in " ".join((ROOT / "CONTRIBUTING.md").read_text().split())


def test_licenses_of_embedded_data() -> None:
    """Each is in the README and, as the SPDX expression, in the metadata of the package."""
    licenses = {entry.license for entry in CATALOG.values() if entry.embedded}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = {"Apache-2.0", *(name.replace(" ", "-") for name in licenses)}
    assert expected == {*project["license"].split(" AND ")}
    assert [name for name in licenses if name not in (ROOT / "README.md").read_text()] == []
