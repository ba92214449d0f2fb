"""Early classification: closed-form fits after training, and a rule that decides before the end.

After each prefix length of the model, the most likely class is the decision if its probability
reaches a threshold; otherwise the class at the end of the series is. The threshold maximizes the
harmonic mean of accuracy and 1 - earliness on held-out training series, where earliness is the mean
fraction of a series before the decision (Schäfer and Leser, "TEASER: Early and Accurate Time Series
Classification", 2020).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import data, inference, models
from flax_linattn.models.closed_form import cross_entropy, fit_weights
from flax_linattn.tasks.classify.metrics import log_probabilities
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Fractions of a series after which a report states the accuracy."""
THRESHOLDS = 1 - np.logspace(-4, np.log10(0.95), 100)
"""Probabilities that a decision rule may have."""


class Decisions(NamedTuple):
    """When a rule decides, and for which class.

    Attributes:
        classes: Classes, int64 [N].
        fractions: Fraction of the series before the decision, float64 [N].
    """

    classes: NDArray[np.int64]
    fractions: NDArray[np.float64]

    def values(self, labels: NDArray[np.integer]) -> dict[str, float]:
        """Accuracy, earliness, and the harmonic mean of accuracy and 1 - earliness.

        Example:
            >>> decisions = Decisions(np.array([0, 1]), np.array([0.25, 0.75]))
            >>> decisions.values(np.array([0, 1]))
            {'accuracy': 1.0, 'earliness': 0.5, 'harmonic_mean': 0.6666666666666666}
        """
        accuracy = float(np.mean(self.classes == labels))
        earliness = float(np.mean(self.fractions))
        total = accuracy + 1 - earliness
        mean = 2 * accuracy * (1 - earliness) / total if total else 0.0
        return {"accuracy": accuracy, "earliness": earliness, "harmonic_mean": mean}


def decide(
    logits: NDArray, lengths: NDArray[np.integer], prefix_lengths: Sequence[int], threshold: float
) -> Decisions:
    """Decides by a threshold on the probability of the most likely class.

    Args:
        logits: Logits [N, P + 1, K] after each prefix length, and at the end of the series.
        lengths: Lengths of the series [N].
        prefix_lengths: Prefix lengths [P].
        threshold: Probability at which a class is decided.

    Example:
        >>> logits = np.log([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.2, 0.8]]])
        >>> decide(logits, np.array([10, 10]), [5], threshold=0.7)
        Decisions(classes=array([0, 1]), fractions=array([0.5, 1. ]))
    """
    at = np.minimum(np.asarray([*prefix_lengths, np.iinfo(np.int32).max]), lengths[:, None])
    is_sure = scipy.special.softmax(logits, axis=-1).max(axis=-1) >= threshold
    is_sure &= np.asarray([*prefix_lengths, 0]) <= lengths[:, None]
    is_sure[:, -1] = True
    first = is_sure.argmax(axis=1)
    rows = np.arange(len(lengths))
    return Decisions(logits.argmax(axis=-1)[rows, first], at[rows, first] / lengths)


def choose_threshold(
    logits: NDArray,
    labels: NDArray[np.integer],
    lengths: NDArray[np.integer],
    prefix_lengths: Sequence[int],
) -> float:
    """The threshold with the largest harmonic mean on held-out series; see ``decide``."""

    def quality(threshold: float) -> float:
        decisions = decide(logits, lengths, prefix_lengths, threshold)
        return decisions.values(labels)["harmonic_mean"]

    return float(max(THRESHOLDS, key=quality))


def fit_closed_form(run: Run, fitted: data.BucketBatches, validation: data.BucketBatches) -> str:
    """Fits features, linear maps, weights and threshold of a ``models.MiniRocketClassifier``.

    The linear maps are fitted to all training series, including the validation part. Their
    leave-one-out logits, and the logits of the attention, which was not trained on the validation
    part, decide at each prefix length whether the attention is added; see ``_choose_weights``. The
    validation part also selected the attention's parameters, which favors the attention a little.

    Returns:
        A note for the user.
    """
    model, config = run.model, run.config
    is_held_out = config.data.select_on == "validation"
    parts = [fitted.arrays, validation.arrays] if is_held_out else [fitted.arrays]
    x, mask, labels = (
        np.concatenate([part[name] for part in parts]) for name in ("values", "mask", "labels")
    )
    logits = model.fit(
        x,
        labels,
        mask=mask,
        example_weights=config.fit.example_weights(labels),
        seed=config.run_config(run.seed_index or 0).seed,
    )
    lengths = mask.sum(axis=1)
    index = _prefix_indices(model.prefix_lengths, lengths)
    index[:, -1] = len(model.prefix_lengths)  # the map of whole series
    logits = np.take_along_axis(logits, index[..., None], axis=1)
    accuracy = float(model.held_out_accuracy[...])
    notes = [f"leave-one-out accuracy of the linear maps: {100 * accuracy:.1f} %"]
    constant = np.bincount(labels).max() / len(labels)
    if accuracy <= constant:
        notes[0] += f", no better than the most frequent class ({100 * constant:.1f} %)"
    if model.attention is not None:
        held_labels, prefixes = validation.arrays["labels"], model.prefix_lengths
        held_lengths = validation.arrays["mask"].sum(axis=1)
        linear = logits[-len(held_labels) :]
        if not is_held_out:
            linear = prefix_logits(model, validation, prefixes)
        others = prefix_logits(model.attention, validation, prefixes)
        pairs = [*zip(np.moveaxis(linear, 1, 0), np.moveaxis(others, 1, 0), strict=True)][:-1]
        weights = np.array([_choose_weights(*pair, held_labels) for pair in pairs])
        model.weights[...] = jnp.asarray(weights, jnp.float32)
        used = int(np.count_nonzero(weights[:, 1]))
        notes.append(f"attention is added at {used} of {len(weights)} prefix lengths")
        if weights[:, 1].any():
            own = weights[_prefix_indices(model.prefix_lengths, held_lengths)]
            logits = own[..., :1] * linear + own[..., 1:] * others
            labels, lengths = held_labels, held_lengths
    threshold = choose_threshold(logits, labels, lengths, model.prefix_lengths)
    model.threshold[...] = jnp.float32(threshold)
    rule = decide(logits, lengths, model.prefix_lengths, threshold).values(labels)
    notes.append(
        f"a stream decides at a probability of {threshold:.3g}, on average after "
        f"{100 * rule['earliness']:.0f} % of a held-out series"
    )
    return "; ".join(notes)


def _prefix_indices(
    prefix_lengths: Sequence[int], lengths: NDArray[np.integer]
) -> NDArray[np.integer]:
    """Index [N, P + 1] of the linear map after each prefix length, and at the end of a series.

    At the end of a shorter series it is the map of the next prefix length, whose leave-one-out
    logits are of all its observations.
    """
    ends = np.minimum([*prefix_lengths, np.iinfo(np.int32).max], lengths[:, None])
    return np.searchsorted(prefix_lengths, ends).clip(max=len(prefix_lengths) - 1)


def _choose_weights(
    linear: NDArray, others: NDArray, labels: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Weights of the linear map and the attention, by their logits of held-out series.

    The mean of both, each with its own temperature, is used if it lowers the cross-entropy by more
    than one standard error; otherwise the linear map alone. Fitted weights are not: a few dozen
    series often say that one of the two is never wrong.
    """
    (weight,) = fit_weights(others[None], labels)
    gain = cross_entropy(linear, labels) - cross_entropy((linear + weight * others) / 2, labels)
    helps = weight > 0 and len(gain) > 1 and gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain))
    return np.array([0.5, weight / 2] if helps else [1.0, 0.0])


def prefix_logits(
    model: Any, batches: data.BucketBatches, prefix_lengths: Sequence[int]
) -> NDArray[np.float32]:
    """Log-probabilities [N, P + 1, K] after each prefix length, and at the end of the series."""
    count = np.cumsum(batches.arrays["mask"], axis=1)
    cut = [_cut_logits(model, batches, count <= end) for end in prefix_lengths]
    return np.stack([*cut, log_probabilities(model, batches, compute_logits)], axis=1)


def accuracy_by_fraction(model: Any, batches: data.BucketBatches) -> list[dict[str, float]]:
    """Table of the accuracy after fractions of each series; after all of it, as a whole series."""
    mask, rows = batches.arrays["mask"], []
    count, lengths = np.cumsum(mask, axis=1), mask.sum(axis=1)
    for fraction in FRACTIONS:
        end = np.ceil(fraction * lengths).astype(int)
        logits = _cut_logits(model, batches, count <= end[:, None], ended=fraction == 1)
        accuracy = float(np.mean(logits.argmax(axis=-1) == batches.arrays["labels"]))
        rows.append({"fraction": fraction, "observations": float(end.mean()), "accuracy": accuracy})
    return rows


def early_values(run: Run, batches: data.BucketBatches) -> dict[str, Any]:
    """Values of a report on early answers: accuracy by fraction of the series, decision rule."""
    model, lengths = run.model, batches.arrays["mask"].sum(axis=1)
    state = model.init_state(1, max_length=run.data_spec.max_length)
    values: dict[str, Any] = {
        "accuracy_by_fraction": accuracy_by_fraction(model, batches),
        "state_bytes": inference.state_bytes(state),
    }
    if isinstance(model, models.MiniRocketClassifier) and model.threshold[...] <= 1:
        threshold = float(model.threshold[...])
        logits = prefix_logits(model, batches, model.prefix_lengths)
        decisions = decide(logits, lengths, model.prefix_lengths, threshold)
        values["decision_threshold"] = round(threshold, 4)
        rule = decisions.values(batches.arrays["labels"])
        values |= {f"decision_{name}": value for name, value in rule.items()}
    return values


def stream_error(
    model: models.MiniRocketClassifier, batches: data.BucketBatches
) -> dict[str, float | int]:
    """Compares the stream with calls on series cut to each prefix length, and on whole series.

    Calls that return every step are no comparison, because they compute features step by step.
    """
    prefixes, mask = model.prefix_lengths, batches.arrays["mask"]
    parallel = np.exp(prefix_logits(model, batches, prefixes))
    ends = np.minimum([*prefixes, mask.shape[1]], mask.sum(axis=1)[:, None])
    steps = np.argmax(np.cumsum(mask, axis=1)[:, None] >= ends[..., None], axis=-1)
    steps[:, -1] = -1  # whole series
    parts, order, first, max_error = nnx.split(model), batches.order, 0, 0.0
    for index in range(len(batches)):
        batch = batches.batch(index)
        y = np.asarray(_unroll(*parts, batch["values"], batch["mask"]))[batch["weight"] > 0]
        rows = order[first : first + len(y)]
        first += len(y)
        streamed = np.take_along_axis(y, steps[rows][..., None], axis=1)
        max_error = float(np.maximum(max_error, np.abs(streamed - parallel[rows]).max()))
    return {"stream_max_error": max_error, "stream_steps": int(steps.size)}


def _cut_logits(
    model: Any, batches: data.BucketBatches, mask: NDArray[np.bool_], *, ended: bool = False
) -> NDArray[np.float32]:
    """Log-probabilities [N, K] of series whose other observations [N, T] are cut off."""
    cut = copy.copy(batches)
    cut.arrays = batches.arrays | {"mask": batches.arrays["mask"] & mask}
    return log_probabilities(model, cut, compute_logits if ended else _compute_cut_logits)


def compute_logits(
    model: Any, batch: dict[str, Array], dropout_key: Array | None, *, ended: bool = True
) -> Array:
    """Computes the logits of a batch of padded series, which have ended or go on, [B, classes]."""
    own = {"ended": ended} if isinstance(model, models.MiniRocketClassifier) else {}
    logits: Array = model(batch["values"], mask=batch["mask"], dropout_key=dropout_key, **own)
    return logits


_compute_cut_logits = partial(compute_logits, ended=False)


@partial(jax.jit, static_argnums=0)  # compiled once for many runs
def _unroll(graphdef: nnx.GraphDef[Any], variables: Any, x: Array, mask: Array) -> Array:
    """Probabilities [B, T + 1, classes] after each step, and of series that have ended."""
    model: models.MiniRocketClassifier = nnx.merge(graphdef, variables)
    y, state = inference.unroll(model, x, mask, return_state=True)
    last = y.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    whole = model.finish(jnp.take_along_axis(y, last[:, None, None], axis=1)[:, 0], state)
    return jax.nn.softmax(jnp.concatenate([y, whole[:, None]], axis=1))
