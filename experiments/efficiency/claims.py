"""All that the papers claim of speed and memory, with our verdicts, in one table.

What an experiment measures it states itself (``Measured.claims``); here stand the claims that
nothing measures, and the page of all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from experiments.claims import NOT_RUN, RULE, VERDICTS, Claim, Verdict
from experiments.experiment import Experiment
from experiments.measured import Measured
from experiments.pages import write_page
from flax_linattn.bench.report import markdown

FOLDER = Path(__file__).parent
PAPERS = ("Aaren", "Element-wise attention", "TaylorShift")
SILENT = "The paper on expressive attention claims nothing of speed or memory."

NOT_MEASURED = (
    Claim(
        "Aaren, sections 3.2 and 5",
        "its scan takes log2(N) steps, with N log(N) operations",
        why="two cores do not show the depth of a scan; ours works in chunks, with operations "
        "linear in N",
    ),
    Claim(
        "Aaren, appendix A",
        "in blocks of b tokens attention takes memory of b",
        why="the paper leaves it outside of its scope",
    ),
    Claim(
        "Element-wise attention, table 1",
        "computation grows with the number of terms t",
        why="throughput of EA-2 and EA-6 is above; no other t is measured",
    ),
    Claim(
        "Element-wise attention, table 1",
        "linear attention takes D^2 for each token, in training and inference",
        why="no measurement of ours sets linear attention beside EA-series",
    ),
    Claim(
        "Element-wise attention, table 1",
        "AFT takes L^2 D in training and L D in inference",
        why="no measurement of ours sets AFT beside EA-series",
    ),
    Claim(
        "Element-wise attention, section 3.4",
        "Taylor polynomials of dot products take L D^t",
        why="it is arithmetic: our Taylor features have order 2 alone",
    ),
    Claim(
        "TaylorShift, equation 10",
        "the efficient form takes the fewest operations with heads of 0.52 channels",
        why="it is arithmetic: 8 d^3 + 10 d^2 = 4, not 9 d^3, gives 0.53; both mean the most heads",
    ),
    Claim(
        "TaylorShift, table 7",
        "training hours and memory on CIFAR, IMDB and ImageNet",
        why="whole trainings are for GPUs; one step of the ListOps model is measured",
    ),
    Claim(
        "TaylorShift, appendix C.3",
        "fused kernels are left out on both sides, as any attention can have one",
        why="a choice: our verdicts name the best softmax at hand and the paper's",
    ),
)


def stated(experiments: Iterable[Experiment]) -> list[tuple[Claim, Verdict, str]]:
    """Every claim with its verdict and what measured it, paper by paper.

    An experiment that was run on a GPU as well states its claims twice.
    """
    found = []
    for experiment in experiments:
        if not isinstance(experiment, Measured) or not experiment.claims:
            continue
        scales = [scale for scale in experiment.sizes if experiment.stored(scale).is_file()]
        for scale in scales:
            rows = json.loads(experiment.stored(scale).read_text())["rows"]
            by = f"`{experiment.stored(scale).stem}`"
            found += [(claim, claim.verdict(rows), by) for claim in experiment.claims]
        if not scales:
            why = Verdict(NOT_RUN, f"`{experiment.command(experiment.usual_scale)}`")
            found += [(claim, why, "-") for claim in experiment.claims]
    found += [(claim, claim.verdict(), "-") for claim in NOT_MEASURED]
    return sorted(found, key=lambda item: paper(item[0]))


def paper(claim: Claim) -> int:
    """The place of its paper among ``PAPERS``."""
    return next(i for i, name in enumerate(PAPERS) if claim.where.startswith(name))


def render(experiments: Iterable[Experiment], folder: Path = FOLDER) -> str:
    """Writes claims.md; returns it."""
    found = stated(experiments)
    counts = {word: sum(verdict.word == word for _, verdict, _ in found) for word in VERDICTS}
    summary = ", ".join(f"{word} {count}" for word, count in counts.items())
    lines = [
        [f"{claim.where}: {claim.says}", verdict.ours, f"**{verdict.word}**", by]
        for claim, verdict, by in found
    ]
    table = markdown(["paper", "ours", "verdict", "measured by"], lines)
    first = f"{len(found)} claims: {summary}. {SILENT}"
    return write_page(folder / "claims.md", [first, table, RULE])
