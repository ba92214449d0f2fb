"""The transformer of Time-Series-Library in its own PyTorch code, on Japanese Vowels.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.classification.published_code

Clone https://github.com/thuml/Time-Series-Library into FOLDER/Time-Series-Library and install its
requirements. Two of its commits train with the options of
``scripts/classification/Transformer.sh``, and select the epoch on the test set, as the papers do.
The commit from the time of the Aaren paper lowers the learning rate every fifth epoch; the latest
one keeps it constant. The seed, which ``run.py`` fixes, is set from outside, and so is the causal
mask, which the Aaren paper adds to the transformer.
Packages that only other models and data sets need are replaced by empty modules. Our rows are the
stored ones of ``experiments.classification.aaren`` by the same protocols.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments.classification import aaren
from experiments.experiment import DATA_FOLDER, data_folder
from experiments.intervals import interval, mean_text, text
from experiments.margins import ACCURACY, within
from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.verdicts import Rule, Verdict, rows_with
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

REPOSITORY = "Time-Series-Library"
"""Name of the clone in the folder of real data."""
DATA_SET = "JapaneseVowels"


class Version(NamedTuple):
    """A commit of the published code.

    Attributes:
        commit: Commit of the clone.
        protocol: Our protocol that repeats it, in ``experiments.classification.aaren``.
        masks: Attention masks, "causal" or "none".
        seeds: Number of runs with each mask.
        options: Further options. The script has 100 epochs; after 15 the falling learning rate is
            too small to change anything.
    """

    commit: str
    protocol: str
    masks: tuple[str, ...]
    seeds: int
    options: str

    def ours(self) -> dict[int, float]:
        """Stored test accuracies of our softmax attention, by seed."""
        runs = aaren.EXPERIMENT.store("paper").of(f"{DATA_SET}, {self.protocol}", "softmax")
        return {seed: run["report"]["test_accuracy"] for seed, run in runs.items()}

    def theirs(self, rows: Rows, mask: str) -> dict[int, float]:
        """Test accuracies of the published code, by seed."""
        name = f"Time-Series-Library {self.commit}, mask {mask}"
        of_mask = rows_with(rows, name, commit=self.commit, mask=mask)
        return {row["seed"]: row["accuracy"] for row in of_mask}


FALLING = Version(
    "a23cfce7", "selected on the TEST SET", ("causal", "none"), 5, "--train_epochs 15"
)
CONSTANT = Version(
    "4e938a17", "on the TEST SET, constant rate", ("causal",), 3, "--train_epochs 100 --no_use_gpu"
)

OPTIONS = (
    "--task_name classification --is_training 1 --model Transformer --data UEA --e_layers 3 "
    "--batch_size 16 --d_model 128 --d_ff 256 --top_k 3 --des Exp --itr 1 --learning_rate 0.001 "
    "--patience 10 --num_workers 0"
)
DRIVER = """
import sys, types
seed, mask, *options = sys.argv[1:]
names = {"datasets": "load_dataset", "huggingface_hub": "hf_hub_download", "mamba_ssm": "Mamba"}
for name, attribute in names.items():
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], attribute, None)
sys.path.insert(0, ".")
import numpy, pandas, torch
torch.set_num_threads(1)
numpy.Inf = numpy.inf  # as before NumPy 2
if not hasattr(pandas.DataFrame, "applymap"):  # its name before pandas 3
    pandas.DataFrame.applymap = pandas.DataFrame.map
from layers.SelfAttention_Family import FullAttention
if mask == "causal":
    init = FullAttention.__init__
    FullAttention.__init__ = lambda self, masked, *args, **named: init(self, True, *args, **named)
sys.argv = ["run.py", *options]
source = open("run.py").read()
assert source.count("fix_seed = 2021") == 1
source = source.replace("fix_seed = 2021", f"fix_seed = {seed}")
exec(compile(source, "run.py", "exec"), {"__name__": "__main__"})
"""

SAME = Rule(
    "Our model is as accurate as the published code if the 95 % confidence interval of the "
    f"difference of their test accuracies over seeds lies within {100 * ACCURACY.fraction:g} % of "
    "theirs, and is not if it lies outside: paired by seed, by Student's t.",
    "2026-11-29T22:40:00+00:00",
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    versions: tuple[Version, ...] = (FALLING, CONSTANT)


def measure(size: Size, journal: Journal) -> None:
    for version in size.versions:
        for mask in version.masks:
            for seed in range(version.seeds):
                key = {"commit": version.commit, "mask": mask, "seed": seed}
                journal.row(key, partial(train, version, mask, seed))


def train(version: Version, mask: str, seed: int) -> dict[str, Any]:
    """Test accuracy of a run of the published code, and the number of its epochs.

    Raises:
        ValueError: the clone is missing.
        RuntimeError: the run failed.
    """
    folder = data_folder()
    if folder is None or not (folder / REPOSITORY).is_dir():
        raise ValueError(
            f"the data folder ({DATA_FOLDER}={folder or 'not set'}) contains no {REPOSITORY}. Set "
            f"{DATA_FOLDER} and clone https://github.com/thuml/{REPOSITORY} into that folder."
        )
    with tempfile.TemporaryDirectory() as root:
        code = Path(root, "code.tar")
        subprocess.run(
            ["git", "-C", str(folder / REPOSITORY), "archive", "-o", str(code), version.commit],
            check=True,
        )
        with tarfile.open(code) as archive:
            archive.extractall(root, filter="data")
        for split in ("TRAIN", "TEST"):
            name = f"{DATA_SET}_{split}.ts"
            packed = folder / "uea" / DATA_SET / f"{name}.gz"
            Path(root, name).write_bytes(gzip.decompress(packed.read_bytes()))
        options = [*OPTIONS.split(), "--root_path", f"{root}/", "--model_id", DATA_SET]
        options += version.options.split()
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", DRIVER, str(seed), mask, *options],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"run.py failed at commit {version.commit}: {done.stderr[-2000:]}")
    accuracies = re.findall(r"^accuracy:([0-9.]+)$", done.stdout, re.MULTILINE)
    return {
        "accuracy": float(accuracies[-1]),
        "epochs": len(re.findall(r"^Epoch: \d+, Steps", done.stdout, re.MULTILINE)),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def judge(version: Version, rows: Rows) -> Verdict:
    """The verdict on our model, against the published code with the causal mask."""
    own, published = version.ours(), version.theirs(rows, "causal")
    points = [100 * (own[seed] - published[seed]) for seed in own if seed in published]
    margin = 100 * ACCURACY.fraction * sum(published.values()) / len(published)
    difference = interval(points)
    says = f"{text(difference, 2)} points over {len(points)} seeds"
    return Verdict(within(difference, margin, SAME), says)


def table(rows: Rows, size: Size) -> str:
    """Accuracies of the published code and of ours, by version."""
    lines = []
    for version in size.versions:
        columns = {f"published, mask {m}": version.theirs(rows, m) for m in version.masks}
        for name, by_seed in {**columns, "ours, softmax, mask causal": version.ours()}.items():
            accuracy = mean_text([100 * value for value in by_seed.values()], 2)
            lines.append([version.commit, version.protocol, name, accuracy, str(len(by_seed))])
    header = ["commit", "our protocol", "model", "test accuracy, %", "seeds"]
    return markdown(header, lines)


EXPERIMENT = Measured(
    module="experiments.classification.published_code",
    needs_data=True,
    extras="",
    about="Aaren, table 4, Japanese Vowels: the transformer, 96.38 ± 0.91 %",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=tuple(
        Statement(
            "ours",
            f"our transformer is as accurate as the published code, commit {version.commit}",
            partial(judge, version),
        )
        for version in (FALLING, CONSTANT)
    ),
    left_out={"": "other data sets and tasks of Time-Series-Library, for lack of time"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
