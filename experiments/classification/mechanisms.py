"""Every mechanism on JapaneseVowels, causal and not causal, with one protocol and one budget.

python -m experiments.classification.mechanisms --seeds 3
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.classification.data_sets import ACCURACY
from experiments.options import task_config
from experiments.tables import QUICK, Cell, Table
from flax_linattn import ops

ORDERS = {
    "elementwise_series": ["elementwise_series:order=2", "elementwise_series:order=6"],
    "taylorshift": ["taylorshift", "taylorshift:order=4", "taylorshift:order=6"],
}
LATENTS = {"aaren": (4, 16), "forgetting_aaren": (16,)}
"""Numbers of latents with which a mechanism is also run."""
SPECS = [spec for name in ops.list_mechanisms() for spec in ORDERS.get(name, [name])]


def cells(folder: Path | None) -> Sequence[Cell]:
    """Both directions of every mechanism, where it offers them."""
    both = []
    for spec in SPECS:
        can = ops.get_mechanism(spec).capabilities
        for causal, column in ((True, "causal"), (False, "not causal")):
            if can.causal if causal else can.noncausal:
                both.append(
                    Cell(spec, column, task_config("classify", mechanism=spec, causal=causal))
                )
        for latents in LATENTS.get(spec, ()):
            config = task_config("classify", mechanism=spec, latents=latents)
            both.append(Cell(f"{spec}, {latents} latents", "causal", config))
    return both


EXPERIMENT = Table(
    module="experiments.classification.mechanisms",
    title="Every mechanism on Japanese Vowels",
    task="classify",
    about="not a table of any of the papers; the element-wise attention paper's numbers for this "
    "set (attention 97.0, EA-6 97.3) select on the test set",
    cells=cells,
    metrics=(ACCURACY,),
    baseline="MiniRocket",
    baselines_row="JapaneseVowels, honest",
    claims=(),
    data="Japanese Vowels, official split 270/370, embedded in the package; selected on a fifth of "
    "the training data",
    departures="the rate and sizes of Time-Series-Library's scripts, nothing tuned for any "
    "mechanism; of size cpu 30 epochs",
    not_run="directions that a mechanism does not offer",
    sizes={"cpu": {"epochs": 30}, "full": {}},
    smaller_scales=("cpu",),
    quick={**QUICK, "batch_size": 90},
)

if __name__ == "__main__":
    EXPERIMENT.main()
