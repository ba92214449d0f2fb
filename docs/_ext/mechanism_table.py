"""The directive ``mechanism-table``: what each registered mechanism can do, from the registry."""

import dataclasses
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from flax_linattn import ops


class MechanismTable(SphinxDirective):
    """One row for each mechanism; its name links to its page beside this one, where it has one."""

    def run(self) -> list[nodes.Node]:
        """Build the table as Markdown and let the page's own parser read it."""
        names = ops.list_mechanisms()
        if not names:
            raise self.error("flax_linattn.ops.list_mechanisms() lists no mechanism")
        folder = Path(self.env.doc2path(self.env.docname)).parent
        pages = [name for name in names if (folder / f"{name}.md").is_file()]
        rows = {name: capability_cells(name) for name in names}
        columns = [key.replace("_", " ") for key in rows[names[0]]]
        lines = [f"| mechanism | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for name, cells in rows.items():
            link = f"[`{name}`]({name}.md)" if name in pages else f"`{name}`"
            lines.append(f"| {link} | {' | '.join(cells.values())} |")
        if pages:
            lines += ["", "```{toctree}", ":hidden:", "", *pages, "```"]
        return self.parse_text_to_nodes("\n".join(lines))


def capability_cells(name: str) -> dict[str, str]:
    """Each capability of a mechanism as text: yes or no, or its list."""
    capabilities = ops.get_mechanism(name).capabilities
    cells = {}
    for field in dataclasses.fields(capabilities):
        value = getattr(capabilities, field.name)
        if isinstance(value, bool):
            cells[field.name] = "yes" if value else "no"
        else:
            cells[field.name] = ", ".join(f"`{item}`" for item in value)
    return cells


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("mechanism-table", MechanismTable)
    return {"parallel_read_safe": True}
