"""Links of README.md, CONTRIBUTING.md and CHANGELOG.md lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
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


def test_the_readme_is_short() -> None:
    words = re.sub(r"^\W+$", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE).split()
    assert len([word for word in words if re.search(r"\w", word)]) <= 900
