"""A directive that shows the stored results of one measured experiment.

``efficiency-result NAME``, or ``FOLDER/NAME`` for one outside of efficiency: for each scale that
was measured the figures, then the page that the experiment wrote; after these, those of each
accelerator (``experiments/accelerator/DEVICE``). Where nothing was measured yet it says how to.
The content of the directive is the caption of its figures, and their alternative text.

Outside of the built site a block shows nothing: the line after it links to the pages that it shows
(``links``), and is left out of the site.
"""

import re
from collections.abc import Iterator
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


BLOCK = re.compile(r"^```\{(efficiency-result|include)\} (\S+)\n(?:.*\n)*?```\n", re.MULTILINE)
LINKS = re.compile(r"^Tables? in the repository: .*\n", re.MULTILINE)


def result_pages(argument: str) -> list[Path]:
    """The pages of an experiment, by the argument of its directive; none before it was run.

    Raises:
        ValueError: there is no such experiment.
    """
    folder, _, name = argument.rpartition("/")
    results = EXPERIMENTS / folder if folder else RESULTS
    if not (results / f"{name}.py").is_file():
        raise ValueError(f"{results} has no experiment {name}")
    # One of a single size has no scale in its name, as the suite of ratios.
    pages = [results / f"{name}.md", *sorted(results.glob(f"{name}-*.md"))]
    return [page for page in pages if page.is_file() and not page.stem.endswith("-quick")]


def links(document: Path) -> Iterator[tuple[str, str]]:
    """Each block of a document that shows tables, and the line that is to follow it."""
    for block in BLOCK.finditer(document.read_text()):
        kind, argument = block.groups()
        if kind == "efficiency-result":
            pages = result_pages(argument)
        else:
            pages = [page for page in [(document.parent / argument).resolve()]
                     if EXPERIMENTS in page.parents]  # fmt: skip
        if pages:
            paths = [page.relative_to(EXPERIMENTS) for page in pages]
            up = "../" * len(document.parent.relative_to(EXPERIMENTS.parent).parts)
            named = " · ".join(f"[{path}]({up}experiments/{path})" for path in paths)
            yield block[0], f"Table{'s' * (len(paths) > 1)} in the repository: {named}\n"


def drop_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Leaves the lines of ``links`` out of the site, which shows the tables themselves."""
    source[0] = LINKS.sub("", source[0])


class EfficiencyResult(SphinxDirective):
    """The results of the experiment that the argument names."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Build Markdown and let the page's own parser read it."""
        name = self.arguments[0].rpartition("/")[2]
        try:
            found = result_pages(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error)) from error
        found += sorted(ACCELERATORS.glob(f"*/{name}-paper.md"))
        lines: list[str] = []
        for page in found:
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
            module = self.arguments[0].replace("/", ".")
            module = module if "." in module else f"efficiency.{module}"
            lines = [f"Not measured yet: `python -m experiments.{module}`."]
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
    app.connect("source-read", drop_links)
    return {"parallel_read_safe": True}
