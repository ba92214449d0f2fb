"""A directive that shows the stored results of one measured experiment.

``efficiency-result NAME``, or ``FOLDER/NAME`` for one outside of efficiency: for each scale that
was measured the figures, then the page that the experiment wrote; after these, those of each
accelerator (``experiments/accelerator/DEVICE``). Where nothing was measured yet it says how to.
The content of the directive is the caption of its figures, and their alternative text.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RESULTS = EXPERIMENTS / "efficiency"
DEVICES = {"cpu": "On a CPU", "paper": "On a GPU"}
ACCELERATORS = EXPERIMENTS / "accelerator"
BENCH = "ratios"
"""The published suite: figures beside the page, and no scales."""


class EfficiencyResult(SphinxDirective):
    """The results of the experiment that the argument names."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Build Markdown and let the page's own parser read it."""
        folder, _, name = self.arguments[0].rpartition("/")
        results = EXPERIMENTS / folder if folder else RESULTS
        if not (results / f"{name}.py").is_file():
            raise self.error(f"{results} has no experiment {name}")
        # One of a single size has no scale in its name, as the suite of ratios.
        found = [results / f"{name}.md", *sorted(results.glob(f"{name}-*.md"))]
        found = [page for page in found if not page.stem.endswith("-quick")]
        found += sorted(ACCELERATORS.glob(f"*/{name}-paper.md"))
        lines: list[str] = []
        for page in filter(Path.is_file, found):
            self.env.note_dependency(str(page))
            scale = page.stem.rpartition("-")[2]
            where = DEVICES.get(scale, "")
            if page.parents[1] == ACCELERATORS:
                where = f"On an accelerator: {page.parent.name}"
            lines += [f"**{where}**", ""] if where else []
            for figure in self.figures(page):
                caption = " ".join(self.content) or page.stem
                lines += [f":::{{figure}} {figure}", f':alt: "{caption}"', "", caption, ":::", ""]
            lines += [page.read_text(), ""]
        if not lines:
            lines = [f"Not measured yet: `python -m experiments.{results.name}.{name}`."]
        return self.parse_text_to_nodes("\n".join(lines))

    def figures(self, page: Path) -> list[str]:
        """Paths of the figures that belong to a page, from the document that shows them."""
        if page.stem == BENCH:
            return [f"../experiments/efficiency/{f.name}" for f in sorted(RESULTS.glob("*.png"))]
        if page.parents[1] == ACCELERATORS:
            drawn = page.parent.glob(f"*-{page.stem.replace('_', '-')}.png")
            return [f"../{f.relative_to(EXPERIMENTS.parent)}" for f in drawn]
        name = f"{page.parent.name}-{page.stem}.png".replace("_", "-")
        return [f"/figures/{name}"] if Path(self.env.srcdir, "figures", name).is_file() else []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("efficiency-result", EfficiencyResult)
    return {"parallel_read_safe": True}
