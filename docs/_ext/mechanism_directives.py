"""Directives that print what the registry knows of the mechanisms.

``mechanism-table``: the capabilities that the content names; ``:toctree:`` adds the pages.
``mechanism-states``: how large its state is.
On a mechanism's page, which is named after it: ``mechanism-facts``, the table at its head, and
``mechanism-weights``, the figure of what it attends to.
"""

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from mechanism_facts import DIM, HEADS, LENGTHS, capability_cells, facts, state_cells
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from flax_linattn import ops


class MechanismTable(SphinxDirective):
    """One row for each mechanism; its name links to its page beside this one."""

    has_content = True
    option_spec: ClassVar = {"toctree": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Build the table as Markdown and let the page's own parser read it."""
        names = ops.list_mechanisms()
        if not names:
            raise self.error("flax_linattn.ops.list_mechanisms() lists no mechanism")
        folder = Path(self.env.doc2path(self.env.docname)).parent
        without = [name for name in names if not (folder / f"{name}.md").is_file()]
        if without:
            raise self.error(f"{folder} has no page for: {', '.join(without)}")
        columns = " ".join(self.content).split()
        rows = [[f"[`{name}`]({name}.md)", *capability_cells(name, columns)] for name in names]
        lines = table(["mechanism", *(column.replace("_", " ") for column in columns)], rows)
        if "toctree" in self.options:
            lines += ["", "```{toctree}", ":hidden:", "", *names, "```"]
        return self.parse_text_to_nodes("\n".join(lines))


class MechanismStates(SphinxDirective):
    """The bytes of each mechanism's state after few and after many tokens."""

    def run(self) -> list[nodes.Node]:
        """Build the table as Markdown and let the page's own parser read it."""
        heads = ["mechanism", *(f"after {tokens:,} tokens" for tokens in LENGTHS)]
        rows = [[f"[`{name}`]({name}.md)", *state_cells(name)] for name in ops.list_mechanisms()]
        return self.parse_text_to_nodes("\n".join(table(heads, rows)))


class MechanismFacts(SphinxDirective):
    """The facts of the mechanism that the page is named after."""

    def run(self) -> list[nodes.Node]:
        """Build the table as Markdown and let the page's own parser read it."""
        name = Path(self.env.docname).name
        if name not in ops.list_mechanisms():
            raise self.error(f"the page {self.env.docname} is not named after a mechanism")
        lines = table([f'`ops.get_mechanism("{name}")`', ""], facts(name).items())
        note = f"The state is that of one layer: B = 1, H = {HEADS}, K = V = {DIM}, float32."
        return self.parse_text_to_nodes("\n".join([*lines, "", note]))


class MechanismWeights(SphinxDirective):
    """The figure of the mechanism that the page is named after; the content says more of it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Build the figure as Markdown and let the page's own parser read it."""
        name = Path(self.env.docname).name
        mechanism = ops.get_mechanism(name)
        projections = (
            "Keys are fixed random projections and each head has one random query, none of them",
            "from a trained layer. Gray: not visible.",
        )
        if not mechanism.capabilities.learned_query:
            projections = (
                "Queries and keys are fixed random projections, not those of a trained layer: in",
                "head 0 by one matrix, so that like attends to like, in head 1 by two. Gray: not",
                "visible.",
            )
        gates = "What else a token brings is made of the same data as by a layer before training."
        lines = [
            f"```{{figure}} ../figures/weights-{name}.png",
            f":alt: Each row shows how much one query of {name} attends to the key of each column.",
            "",
            "What each of 24 observations of a Japanese Vowels recording attends to.",
            *projections,
            *([gates] if mechanism.token_arguments else []),
            *self.content,
            f"`python -m experiments.attention.weights {name}`",
            "```",
        ]
        return self.parse_text_to_nodes("\n".join(lines))


def table(heads: list[str], rows) -> list[str]:
    """The lines of a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("mechanism-table", MechanismTable)
    app.add_directive("mechanism-states", MechanismStates)
    app.add_directive("mechanism-facts", MechanismFacts)
    app.add_directive("mechanism-weights", MechanismWeights)
    return {"parallel_read_safe": True}
