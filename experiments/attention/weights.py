"""Plots the attention weights of every mechanism on one real sequence, for its page.

    python -m experiments.attention.weights [NAME ...]

Each mechanism has one figure, ``docs/figures/weights-<name>.png``. Queries and keys are random
projections of a JapaneseVowels test sequence (``sequence.py``), not of a trained model: the figures
compare mechanisms on equal queries and keys. Forget and write gates come from a layer before
training.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments import command
from experiments.attention.sequence import HEADS, LEARNED, first_gates, observations, project
from experiments.measured import FIGURES
from flax_linattn import ops
from flax_linattn.ops.engine.features import l2_normalize

KEY_DIM = 16
HYPERPARAMETERS = {
    "linformer": {"num_projections": 8},
    "nystrom": {"num_landmarks": 6},
    "reformer": {"bucket_size": 4, "num_hashes": 2},
    "eva": {"window_size": 4, "num_chunks": 4},
}
"""Their defaults are for sequences many times as long."""
FIRST_VALUES = ("time_decay", "time_first")
"""What a mechanism learns whose values before training say how it looks back."""
UNSEEN = "0.82"
"""The gray of keys that are not visible to a query."""


def measure(name: str, is_causal: bool) -> NDArray[np.float32]:
    """Weights [head, T, S] of a mechanism; NaN where a key is not visible.

    Where every channel has its own weights, the channel of the widest keys represents its head.
    Position biases fall with the distance, as learned ones may; rates of forgetting are the first
    ones of a layer, as are gates (``first_gates``).
    """
    mechanism = ops.get_mechanism(name, **HYPERPARAMETERS.get(name, {}))
    x = observations()
    q, k, _ = (jnp.asarray(each, jnp.float32) for each in project(x, KEY_DIM))
    if mechanism.capabilities.unit_vectors:
        q, k = l2_normalize(q), l2_normalize(k)
    parameters = first_gates(x, mechanism.token_arguments, KEY_DIM)
    learned = mechanism.learned_parameters(len(HEADS), KEY_DIM)
    for own in (own for own in FIRST_VALUES if own in learned):
        parameters[own] = learned[own].init(jax.random.key(0), learned[own].shape, jnp.float32)
    if mechanism.capabilities.learned_query:
        q = jax.random.normal(jax.random.key(0), q.shape[2:])
    if "position_bias" in mechanism.parameters:
        step = jnp.arange(k.shape[1])
        parameters["position_bias"] = -jnp.abs(step[:, None] - step) / 4
    w = np.array(ops.weights(mechanism, q, k, is_causal=is_causal, **parameters))[0]
    if mechanism.capabilities.channelwise:
        widest = np.array(k[0]).std(axis=0).argmax(axis=1)
        w = np.stack([head[channel] for head, channel in zip(w, widest, strict=True)])
    if is_causal:
        w[:, ~np.tri(w.shape[1], dtype=bool)] = np.nan
    return w


def plot(name: str) -> Figure:
    """The figure of one mechanism: a row a head, a column a form."""
    can = ops.get_mechanism(name).capabilities
    forms = {"causal": can.causal, "not causal": can.noncausal}
    panels = {form: measure(name, form == "causal") for form, offered in forms.items() if offered}
    norm, extend, colors = scale(list(panels.values()))

    figure, axes = plt.subplots(
        len(HEADS),
        len(panels),
        figsize=(2.6 * len(panels) + 1.2, 5.4),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="compressed",
    )
    for column, (form, w) in enumerate(panels.items()):
        for row, what in enumerate(LEARNED if can.learned_query else HEADS):
            axis: Axes = axes[row, column]
            axis.set_facecolor(UNSEEN)
            axis.imshow(w[row], norm=norm, cmap=colors, interpolation="nearest")
            if row == 0:
                axis.set_title(form)
            if column == 0:
                axis.set_ylabel(f"head {row}: {what}\nquery, time step")
    for axis in axes[-1]:
        axis.set_xlabel("key, time step")
    figure.colorbar(ScalarMappable(norm, colors), ax=axes, extend=extend, label="weight")
    return figure


def scale(panels: list[NDArray[np.float32]]) -> tuple[Normalize, str, str]:
    """The color scale of all panels; the few largest weights are clipped."""
    visible = np.concatenate([w[~np.isnan(w)] for w in panels])
    limit = float(np.quantile(np.abs(visible), 0.98))
    if visible.min() < -1e-3 * limit:
        return Normalize(-limit, limit), "both", "RdBu_r"
    return Normalize(0, limit), "max", "magma_r"


def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    parser = command.parser("experiments.attention.weights", about, FIGURES)
    parser.add_argument("names", nargs="*", default=ops.list_mechanisms(), metavar="NAME")
    options = parser.parse_args()
    for name in options.names:
        path = options.output / f"weights-{name}.png"
        figure = plot(name)
        figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
        plt.close(figure)
        print(f"{path}: {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
