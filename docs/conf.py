"""Sphinx settings. Nothing is fetched: the build works offline."""

import sys
from pathlib import Path

import jax

# jax 0.10 calls its array class by its private module; jaxtyping builds its names from this.
jax.Array.__name__ = "Array"

from flax import nnx  # noqa: E402
from sphinx.ext.napoleon.docstring import GoogleDocstring  # noqa: E402
from sphinx.util import inspect  # noqa: E402

import flax_linattn  # noqa: E402
from flax_linattn import typing  # noqa: E402

# Within a union autodoc prints the object that stands for an alias, not the name of the alias.
inspect.TypeAliasForwardRef.__repr__ = lambda self: self.name
# Napoleon takes the words before a colon in a property's docstring for its type.
GoogleDocstring._consume_inline_attribute = lambda self: (
    "",
    GoogleDocstring(self._dedent(self._consume_to_end()), self._config).lines(),
)

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
exclude_patterns = ["_build", "_ext", "_static", "notebooks"]

html_theme = "furo"
html_title = f"flax-linattn {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]

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


def sign_module(app, what, name, value, options, signature, returns):
    """Show the constructor of an ``nnx.Module``: its metaclass has ``(*args, **kwargs)``."""
    if what == "class" and issubclass(value, nnx.Module):
        arguments = inspect.signature(value.__init__, bound_method=True)
        return inspect.stringify_signature(arguments, show_annotation=False), returns
    return None


def link_short_name(app, env, node, contnode):
    """Link a class without its module, such as an error, to the only documented one of its name."""
    name = node["reftarget"].rpartition(".")[2]
    if node.get("reftype") not in ("class", "exc"):
        return None
    domain = env.domains.python_domain
    found = [
        x
        for x, y in domain.objects.items()
        if x.endswith("." + name) and y.objtype in ("class", "exception")
    ]
    if len(found) != 1 or not node["reftarget"].startswith(("flax_linattn.", name)):
        return None
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], found[0], node, contnode
    )


def setup(app):
    """Connect to Sphinx."""
    app.connect("autodoc-skip-member", skip_generated)
    app.connect("autodoc-process-signature", sign_module)
    app.connect("missing-reference", link_short_name)
