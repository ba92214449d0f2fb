"""TaylorShift, table 3, ImageNet (Ti): its model, trained on part of Tiny-ImageNet for equal time.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.sequences.ti

Each mechanism trains for as many steps as fit in one time budget, given its own time per step.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from experiments.experiment import data_folder
from experiments.intervals import interval, mean_text, text
from experiments.measured import Measured, Rows
from experiments.sequences.data_sets import DATA_SETS, IMAGES
from experiments.sequences.rules import ahead
from experiments.sequences.runs import cached_task, train_and_test
from experiments.statements import Statement
from experiments.verdicts import NotMeasuredError, Verdict
from flax_linattn import tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown
from flax_linattn.models import vit_layers
from flax_linattn.tasks import Config

PROBE = 6
"""Steps of each of the two periods, of which the second is timed: the first one compiles."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    mechanisms: tuple[str, ...] = ("taylorshift", "softmax")
    seeds: int = 3
    minutes: float = 6.0
    batch_size: int = 32
    image_size: int = 64
    patch_size: int = 8
    learning_rate: float = 3e-3


def configuration(size: Size, mechanism: str, seed: int, **options: Any) -> Config | None:
    """The options of a run; None where its files are not available."""
    folder, file = data_folder(), DATA_SETS[IMAGES].file
    if folder is None or file is None or not (folder / file).is_file():
        return None
    layers = vit_layers("ti", mechanism=mechanism)
    of_layers = {field.name: getattr(layers, field.name) for field in dataclasses.fields(layers)}
    return tasks.get_task("image").Config.of(  # type: ignore[no-any-return]
        **of_layers,
        folder=folder / file,
        image_size=size.image_size,
        patch_size=size.patch_size,
        augmentation="light",
        validation_fraction=0.02,
        batch_size=size.batch_size,
        learning_rate=size.learning_rate,
        label_smoothing=0.1,
        seed=seed,
        **options,
    )


def measure(size: Size, journal: Journal) -> None:
    for seed in range(size.seeds):
        for mechanism in size.mechanisms:
            if configuration(size, mechanism, seed) is None:
                continue
            key = {"mechanism": mechanism, "seed": seed}
            journal.row(key, partial(for_minutes, size, mechanism, seed))


def for_minutes(size: Size, mechanism: str, seed: int) -> dict[str, Any]:
    """Trains for ``size.minutes``, estimated from the time of a step, and tests."""
    probe = configuration(size, mechanism, seed, steps=2 * PROBE, validate_every=PROBE, warmup=0.0)
    assert probe is not None
    with tempfile.TemporaryDirectory() as folder:
        session = training.Session(folder, progress=False)
        tasks.train(cached_task("image"), probe, session)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    step = json.loads(lines[1])["seconds"] / PROBE
    steps = max(4, round(60 * size.minutes / step))
    config = configuration(
        size, mechanism, seed, steps=steps, validate_every=-(-steps // 4), warmup=0.1
    )
    assert config is not None
    return {"step_seconds": step, "steps": steps, **train_and_test("image", config)}


def find_rows(rows: Rows, mechanism: str) -> dict[int, dict[str, Any]]:
    """The rows of a mechanism by seed.

    Raises:
        NotMeasuredError: it was not trained.
    """
    by_seed = {
        row["seed"]: row for row in rows if row["mechanism"] == mechanism and "accuracy" in row
    }
    if not by_seed:
        raise NotMeasuredError(f"the Ti model with {mechanism}")
    return by_seed


def judge_pair(rows: Rows) -> Verdict:
    """The verdict on the two at equal time."""
    ours, theirs = find_rows(rows, "taylorshift"), find_rows(rows, "softmax")
    gap = interval(
        [100 * (ours[s]["accuracy"] - theirs[s]["accuracy"]) for s in ours.keys() & theirs.keys()]
    )
    each = ", ".join(
        f"{mechanism} {100 * row['accuracy']:.1f} % after {row['steps']} steps"
        for mechanism in ("taylorshift", "softmax")
        for row in find_rows(rows, mechanism).values()
    )
    gap_text = "" if gap is None else f"{text(gap, 1)} points; "
    return Verdict(ahead(gap), f"{gap_text}{each} (paper, equal epochs: 75.0 and 75.6 %)")


def table(rows: Rows, size: Size) -> str:
    """Accuracies and costs, a line for each mechanism."""
    header = ["mechanism", "paper (ImageNet-1k)", "ours", "steps", "s per step", "parameters"]
    lines = []
    for mechanism in size.mechanisms:
        try:
            own = list(find_rows(rows, mechanism).values())
        except NotMeasuredError:
            continue
        lines.append(
            [
                f"`{mechanism}`",
                f"{DATA_SETS[IMAGES].paper[mechanism]:.1f}",
                mean_text([100 * row["accuracy"] for row in own], 1),
                " ".join(str(row["steps"]) for row in own),
                " ".join(f"{row['step_seconds']:.2f}" for row in own),
                f"{own[0]['parameters']:,}",
            ]
        )
    return f"Accuracy, percent of 25 classes:\n\n{markdown(header, lines)}"


EXPERIMENT = Measured(
    module="experiments.sequences.ti",
    needs_data=True,
    about="TaylorShift, table 3, ImageNet (Ti): 12 layers of 192, here for equal time",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(Statement("ours", "at equal time TaylorShift is ahead of softmax", judge_pair),),
    left_out={
        "": "ImageNet-1k, 224 x 224 pixels, 300 epochs of batches of 2,048, DeiT's augmentation, "
        "which take GPUs for days; a few minutes of a CPU core cover the images about once"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
