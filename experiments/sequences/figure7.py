"""TaylorShift, figure 7: distribution of the products of queries and keys in a trained encoder.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.sequences.figure7

The paper expands the exponential around 0 and finds the products near 0. Its polynomial of order 2
approximates the exponential worse, the larger the products are.
"""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.experiment import data_folder
from experiments.measured import Measured, Rows
from experiments.sequences.data_sets import DATA_SETS, IMAGES, LISTOPS, make_config
from experiments.sequences.rules import centered
from experiments.sequences.runs import cached_task
from experiments.statements import Statement
from experiments.verdicts import Verdict, combine, one_seed, rows_with
from flax_linattn import tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.nn import Attention
from flax_linattn.ops.mechanisms.taylorshift import TaylorShift
from flax_linattn.typing import Array

EDGES = np.linspace(-8, 8, 321)
"""Of the bins that are counted."""
QUANTILES = (0.005, 0.25, 0.5, 0.75, 0.995)
BATCHES = 16
"""Of the test, evenly spread, of each a fourth of the rows."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    data: tuple[str, ...] = (IMAGES, LISTOPS)
    num_layers: int = 4
    steps: int = 1500


def measure(size: Size, journal: Journal) -> None:
    for name in size.data:
        config = make_config(
            name,
            data_folder(),
            mechanism="taylorshift",
            num_layers=size.num_layers,
            steps=size.steps,
        )
        if config is not None:
            journal.row({"data": name}, partial(distributions, DATA_SETS[name].task, config))


def distributions(task: str, config: tasks.Config) -> dict[str, Any]:
    """Trains a model; counts the products of each layer over test examples."""
    of_task = cached_task(task)
    with tempfile.TemporaryDirectory() as folder:
        values = tasks.train(of_task, config, training.Session(folder, progress=False))
        run = tasks.load_run(folder)
    run = run._replace(data=of_task.load(config))
    source = of_task.test_batches(run, None)
    chosen = np.linspace(0, len(source) - 1, BATCHES).astype(int)  # files are sorted by class
    noted = [
        layer_products(run, {k: jnp.asarray(x[::4]) for k, x in source.batch(i).items()})
        for i in chosen.tolist()
    ]
    layers = []
    for products in zip(*noted, strict=True):
        flat = np.concatenate([np.asarray(part, np.float64).ravel() for part in products])
        counts, _ = np.histogram(flat, EDGES)
        layers.append(
            {
                "mean": float(flat.mean()),
                "std": float(flat.std()),
                "quantiles": np.quantile(flat, QUANTILES).tolist(),
                "counts": counts.tolist(),
            }
        )
    return {"accuracy": values["test_accuracy"], "layers": layers}


def layer_products(run: tasks.Run, batch: dict[str, Array]) -> list[Array]:
    """x = tau q . k of all real pairs of tokens, layer by layer, q and k of length 1."""
    noted: list[Array] = []
    again = nnx.merge(*nnx.split(run.model))
    for _, module in nnx.iter_modules(again):
        if isinstance(module, Attention) and isinstance(module.mechanism, TaylorShift):
            given = module.mechanism
            options = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
            module.mechanism = RecordingTaylorShift(**options, noted=_Records(noted))
    task: Any = run.task
    task.compute_logits(again, batch, None)
    return noted


class _Records:
    """A list that is one value of a frozen dataclass."""

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays


@dataclasses.dataclass(frozen=True)
class RecordingTaylorShift(TaylorShift):
    """TaylorShift that notes the products it makes its weights of."""

    noted: _Records | None = None

    def attend(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
        """As ``TaylorShift``; notes tau q . k of all real pairs."""
        assert self.noted is not None

        def unit(x: Array) -> Array:
            return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

        tau = options["temperature"][:, None, None]
        products = tau * jnp.einsum("bthk,bshk->bhts", unit(q), unit(k))
        mask = options.get("mask")
        real = jnp.ones(k.shape[:2], bool) if mask is None else mask
        pairs = jnp.broadcast_to((real[:, :, None] & real[:, None])[:, None], products.shape)
        self.noted.arrays.append(products[pairs])
        return super().attend(q, k, v, **options)


def find_row(rows: Rows, data: str) -> dict[str, Any]:
    """The row of a data set.

    Raises:
        NotMeasuredError: nothing was trained on it.
    """
    return rows_with(rows, f"a model of {data}", data=data)[0]


def around_zero(rows: Rows) -> Verdict:
    """The verdict on all layers."""
    words, texts = [], []
    for row in rows:
        for layer in row["layers"]:
            words.append(centered(layer["mean"], layer["std"]))
        ratios = ", ".join(f"{own['mean'] / own['std']:+.2f}" for own in row["layers"])
        texts.append(f"{row['data']} {ratios}")
    ours = f"mean / standard deviation, layer by layer, one run each: {'; '.join(texts)}"
    return Verdict(one_seed(combine(words)), ours)


def table(rows: Rows, size: Size) -> str:
    """The distributions, a line for each layer."""
    header = ["data", "layer", "mean", "deviation", "middle 99 %", "accuracy"]
    lines = []
    for row in rows:
        for number, layer in enumerate(row["layers"], start=1):
            low, *_, high = layer["quantiles"]
            lines.append(
                [
                    row["data"] if number == 1 else "",
                    str(number),
                    f"{layer['mean']:+.3f}",
                    f"{layer['std']:.3f}",
                    f"{low:+.2f} to {high:+.2f}",
                    f"{100 * row['accuracy']:.1f} %" if number == 1 else "",
                ]
            )
    return markdown(header, lines)


def plot(rows: Rows) -> Any:
    """A curve a layer, one picture a data set."""
    figure = import_figure()(figsize=(4.2 * len(rows), 3.2), layout="constrained")
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    width = EDGES[1] - EDGES[0]
    for axes, row in zip(np.atleast_1d(figure.subplots(1, len(rows))), rows, strict=True):
        reach = 0.0
        for number, layer in enumerate(row["layers"], start=1):
            density = np.array(layer["counts"]) / (sum(layer["counts"]) * width)
            axes.plot(middles, density, label=f"layer {number}, mean {layer['mean']:+.2f}")
            reach = max(reach, *(abs(layer["quantiles"][i]) for i in (0, -1)))
        axes.set(title=row["data"], xlabel="products of queries and keys", xlim=(-reach, reach))
        axes.legend(fontsize=7)
    return figure


EXPERIMENT = Measured(
    module="experiments.sequences.figure7",
    needs_data=True,
    about="TaylorShift, figure 7: the products of queries and keys at the layers of an encoder",
    sizes={"": Size()},
    smaller_scales=("",),
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement(
            "TaylorShift, figure 7 (appendix D.1)",
            "at each layer of a trained encoder the products are about centered around 0",
            around_zero,
        ),
    ),
    left_out={
        "": "the paper's encoder of ImageNet; ours are small ones of Tiny-ImageNet and ListOps"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
