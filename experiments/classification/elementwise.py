"""Element-wise attention, table 3: classification without a causal mask.

python -m experiments.classification.elementwise --seeds 3
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.classification.aaren import PROTOCOLS, claims
from experiments.classification.problems import ACCURACY, NOT_HERE, problem
from experiments.tables import QUICK, Cell, Table
from flax_linattn.tasks import ClassifyConfig

MECHANISMS = {
    "SA": "softmax",
    "EA-2": "elementwise_series:order=2",
    "EA-6": "elementwise_series:order=6",
    "EA": "elementwise",
}
PAPER = {
    "JapaneseVowels": {"EA-2": 95.7, "EA-6": 97.3, "SA": 97.0},
    "SelfRegulationSCP1": {"EA-2": 88.7, "EA-6": 90.4, "SA": 89.4},
    "SelfRegulationSCP2": {"EA-2": 50.0, "EA-6": 53.3, "SA": 52.8},
    "UWaveGestureLibrary": {"EA-2": 79.4, "EA-6": 84.7, "SA": 82.2},
}


def cells(folder: Path | None) -> Sequence[Cell]:
    """Every protocol of every data set; the published numbers are selected on the test set."""
    found = []
    for name, paper in PAPER.items():
        options = problem(name, folder)
        for protocol, how in PROTOCOLS.items():
            for column, mechanism in MECHANISMS.items():
                config = None
                if options is not None:
                    config = ClassifyConfig(mechanism=mechanism, causal=False, **how, **options)
                published = {}
                if protocol != "honest" and column in paper:
                    published = {"accuracy, %": (paper[column], None)}
                found.append(Cell(f"{name}, {protocol}", column, config, published))
    return found


TABLE = Table(
    module="experiments.classification.elementwise",
    about="Element-wise Attention Is All You Need, 2025, table 3; seeds and spread not reported; "
    "selected on a validation set, which in the library that it follows is the test set",
    cells=cells,
    metrics=(ACCURACY,),
    claims=claims(
        ("EA-6 is at least as good as SA", "EA-6", "SA"), ("SA is better than EA-2", "SA", "EA-2")
    ),
    data="UEA archive, official splits",
    departures="no dropout on attention weights. Selected on the test set: the learning rate falls "
    "as in the library until the end of 2024, and training ends at epoch 15 of 100, where it is "
    "below 1e-7; constant rate: as in the library since then. Which of them the paper, of January "
    "2025, had is not stated. Honest is our own protocol",
    not_run=NOT_HERE,
    sizes={"paper": {}},
    quick={**QUICK, "batch_size": 90},
)

if __name__ == "__main__":
    TABLE.main()
