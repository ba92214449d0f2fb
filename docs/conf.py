"""Sphinx settings. Nothing is fetched: the build works offline."""

import sys
from pathlib import Path

import jax

# jax 0.10 calls its array class by its private module; jaxtyping builds its names from this.
jax.Array.__name__ = "Array"

import flax_linattn  # noqa: E402
from flax_linattn import typing  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "flax-linattn"
author = "the flax-linattn contributors"
copyright = f"2026, {author}"
version = release = flax_linattn.__version__

extensions = [
    "api_pages",
    "efficiency_directive",
    "mechanism_directives",
    "myst_parser",
    "notebooks",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_ext", "notebooks"]

html_theme = "furo"
html_title = f"flax-linattn {release}"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Signatures name an axis layout (Queries) and link to it, rather than spell it out.
autodoc_type_aliases = {name: f"flax_linattn.typing.{name}" for name in typing.__all__}
napoleon_google_docstring = True
napoleon_use_ivar = True  # the Attributes section describes; autodoc makes the targets
napoleon_numpy_docstring = False

# Docstring examples run in the test suite; here only {doctest} and {testcode} blocks of the pages.
doctest_test_doctest_blocks = ""


def skip_generated(app, what, name, value, skip, options):
    """Leave out the fields of named tuples: their class's Attributes section describes them."""
    generated = (getattr(value, "__doc__", None) or "").startswith("Alias for field number")
    return True if generated else None


def setup(app):
    """Connect to Sphinx."""
    app.connect("autodoc-skip-member", skip_generated)
