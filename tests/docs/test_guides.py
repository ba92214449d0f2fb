"""A guide that is code from end to end runs here, too: on eight devices, warnings as errors."""

import doctest
import re
from pathlib import Path

import jax
import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
BLOCK = re.compile(r"^```\{doctest\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUIDES_RUN = [path.stem for path in sorted(GUIDES.glob("*.md")) if BLOCK.search(path.read_text())]
pytestmark = pytest.mark.skipif(
    not GUIDES.is_dir(), reason="the documentation is not part of the installed package"
)


def examples(text: str) -> str:
    """The {doctest} blocks, at the lines where they stand, as the docs build joins them."""
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for i, line in enumerate(block[1].splitlines()):
            lines[first + i] = line
    return "\n".join(lines) + "\n"


FAST = ("models", "your-own-model")
"""The docs build runs all of them."""


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in GUIDES_RUN],
)
def test_guide(name: str) -> None:
    path = GUIDES / f"{name}.md"
    test = doctest.DocTestParser().get_doctest(examples(path.read_text()), {}, name, str(path), 0)
    assert len(test.examples) > 5
    report: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False
    )
    with jax.numpy_dtype_promotion("standard"):  # as users have it, and optax needs it
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
