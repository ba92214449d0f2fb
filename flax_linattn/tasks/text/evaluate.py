"""Scores of a language model: bits of each token, in windows or with the state carried over."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from flax_linattn import models, training
from flax_linattn.data.texts import TokenWindows
from flax_linattn.tasks.spec import Run
from flax_linattn.typing import Array, State

CHUNK_SIZE = 512
"""Number of tokens of a chunk, from whose end the state is carried over to the next chunk."""
COPY_CONTEXT = 8
"""Number of preceding tokens that a token shares with an earlier passage to count as a copy."""
MAX_LOGITS = 2**23
"""Maximum number of logits in memory at once."""
NUM_BINS = 10
"""Number of bins of the calibration table."""


class Scores(NamedTuple):
    """Scores of tokens, each given the tokens before it.

    Attributes:
        bits: Bits -log2 p of each token.
        confidence: Probability of the most likely token.
        is_right: Whether the most likely token is the actual token.
    """

    bits: Any
    confidence: Any
    is_right: Any


def loss_fn(
    model: models.LanguageModel, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Computes the mean cross-entropy of the targets in nats, and the mean bits per token.

    With a large vocabulary, logits are computed for a few tokens at a time to save memory.
    """
    tokens, targets = batch["tokens"], batch["targets"]
    features = model.backbone(tokens, segment_ids=batch.get("segment_ids"), dropout_key=dropout_key)
    chunk_size = max(1, MAX_LOGITS // (len(tokens) * model.num_tokens))
    nats = training.chunked_cross_entropy(
        model.read, features, targets, chunk_size=chunk_size
    ).astype(jnp.float32)
    weight = batch["weight"][:, None] * batch["mask"].astype(jnp.float32)
    total, count = jnp.sum(nats * weight), jnp.sum(weight)
    return total / jnp.maximum(count, 1), {
        "loss": (total, count),
        "bits_per_token": (total * np.float32(1 / np.log(2)), count),
    }


def score(logits: Array, targets: Array) -> Scores:
    """Scores targets [...] with logits [..., N]."""
    log_p = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    # In bfloat16 the sums over many tokens would lose bits.
    bits = own.astype(jnp.float32) * np.float32(-1 / np.log(2))
    best = jnp.max(log_p, axis=-1)
    return Scores(bits, jnp.exp(best), jnp.argmax(logits, axis=-1) == targets)


@nnx.jit
def score_pairs(
    model: models.LanguageModel,
    tokens: Array,
    targets: Array,
    segment_ids: Array | None = None,
) -> Scores:
    """Scores targets [B, T]; ``targets[b, t]`` is the token after ``tokens[b, t]``."""
    return _score_features(model, model.backbone(tokens, segment_ids=segment_ids), targets)


def _score_features(model: models.LanguageModel, features: Array, targets: Array) -> Scores:
    """Scores targets [B, T] with features [B, T, C], a few tokens at a time to save memory."""
    if targets.size * model.num_tokens <= MAX_LOGITS:
        return score(model.read(features), targets)

    def score_token(token: tuple[Array, Array]) -> Scores:
        return score(model.read(token[0]), token[1])

    flat = features.reshape(-1, features.shape[-1]), targets.reshape(-1)
    size = max(1, MAX_LOGITS // model.num_tokens)
    scores = jax.lax.map(score_token, flat, batch_size=size)
    return Scores(*(each.reshape(targets.shape) for each in scores))


@nnx.jit
def _score_chunk(
    model: models.LanguageModel,
    tokens: Array,
    targets: Array,
    segment_ids: Array | None,
    state: State,
) -> tuple[Scores, State]:
    features, state = model.backbone(
        tokens, segment_ids=segment_ids, state=state, return_state=True
    )
    return _score_features(model, features, targets), state


def score_windows(run: Run, windows: TokenWindows) -> Scores:
    """Scores all targets [N] in separate windows, whose first tokens have little context."""
    parts = []
    for step in range(len(windows)):
        batch = windows.batch(step)
        arrays: Any = [batch.get(name) for name in ("tokens", "targets", "segment_ids")]
        scores = score_pairs(run.model, *arrays)
        real = batch["mask"] & (batch["weight"] > 0)[:, None]
        parts.append(Scores(*(np.asarray(each)[real] for each in scores)))
    return Scores(*map(np.concatenate, zip(*parts, strict=True)))


def score_carried(run: Run, windows: TokenWindows, chunk: int = CHUNK_SIZE) -> Scores:
    """Scores all targets [N] with the state carried over the whole text, as a stream does.

    A document begins with the initial state. The model needs a state of constant size.
    """
    tokens, parts = windows.tokens, []
    state, num_targets = run.model.init_state(1), len(windows.tokens) - 1
    segment_ids: Any = None
    num_begun = np.int32(0)
    for start in range(0, num_targets, chunk):
        window: Any = np.asarray(tokens[start : start + chunk + 1], np.int32)
        size = len(window) - 1
        window = np.pad(window, (0, chunk - size))[None]  # padding at the end changes no score
        if windows.begin is not None:  # segment ids continue in the next chunk
            segment_ids = num_begun + np.cumsum(
                window[:, :-1] == windows.begin, axis=1, dtype=np.int32
            )
            num_begun = segment_ids[0, -1]
        scores, state = _score_chunk(run.model, window[:, :-1], window[:, 1:], segment_ids, state)
        parts.append(Scores(*(np.asarray(each)[0, :size] for each in scores)))
    return Scores(*map(np.concatenate, zip(*parts, strict=True)))


def carries_state(run: Run) -> bool:
    """Whether the state of a run can be carried over a text of any length."""
    model = run.model
    return bool(model.streams and model.backbone.constant_memory and model.num_positions is None)


def count_bytes(run: Run, tokens: NDArray[np.integer]) -> int:
    """Counts the bytes of the text that tokens encode."""
    return len(run.data_spec.make_tokenizer().decode(np.asarray(tokens)))


def report_values(run: Run, windows: TokenWindows) -> dict[str, Any]:
    """Computes the metrics of the test text, with tables by position, probability and distance."""
    by_window = score_windows(run, windows)
    best = score_carried(run, windows) if carries_state(run) else by_window
    tokens = np.asarray(windows.tokens)
    num_targets = len(tokens) - 1
    num_bytes = max(count_bytes(run, tokens[1:]), 1)
    position = np.arange(num_targets) % windows.length
    calibration = calibration_table(best)
    return {
        "test_bits_per_byte": _sum(best.bits) / num_bytes,
        "test_window_bits_per_byte": _sum(by_window.bits) / num_bytes,
        "test_bits_per_token": _sum(best.bits) / num_targets,
        "test_perplexity": float(2 ** min(_sum(best.bits) / num_targets, 1000.0)),
        "test_accuracy": float(np.mean(best.is_right)),
        "test_calibration_error": calibration_error(calibration),
        "num_test_tokens": num_targets,
        "num_test_bytes": num_bytes,
        "carries_state": carries_state(run),
        "positions": position_table(by_window, position),
        "calibration": calibration,
        "copies": copy_table(best, tokens),
    }


def _sum(values: NDArray[np.floating]) -> float:
    return float(np.sum(values, dtype=np.float64))


def position_table(scores: Scores, position: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Bits, perplexity and calibration by the number of tokens before a token in its window."""
    rows = []
    bins = np.minimum(np.log2(position + 1).astype(np.int64), 30)
    for number in np.unique(bins).tolist():
        chosen = bins == number
        part = Scores(*(each[chosen] for each in scores))
        bits = float(np.mean(part.bits, dtype=np.float64))
        rows.append(
            {
                "first_position": 2**number - 1,
                "tokens": int(chosen.sum()),
                "bits_per_token": bits,
                "perplexity": float(2 ** min(bits, 1000.0)),
                "accuracy": float(np.mean(part.is_right)),
                "calibration_error": calibration_error(calibration_table(part)),
            }
        )
    return rows


def calibration_table(scores: Scores) -> list[dict[str, Any]]:
    """Accuracy of the most likely tokens by their probability, in bins of equal width."""
    bins = np.minimum((scores.confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    rows = []
    for number in range(NUM_BINS):
        chosen = bins == number
        if chosen.any():
            rows.append(
                {
                    "confidence_from": number / NUM_BINS,
                    "tokens": int(chosen.sum()),
                    "confidence": float(np.mean(scores.confidence[chosen], dtype=np.float64)),
                    "accuracy": float(np.mean(scores.is_right[chosen])),
                }
            )
    return rows


def calibration_error(rows: list[dict[str, Any]]) -> float:
    """Expected calibration error: mean absolute difference between confidence and accuracy."""
    total = sum(row["tokens"] for row in rows)
    return sum(row["tokens"] * abs(row["confidence"] - row["accuracy"]) for row in rows) / total


def copy_table(scores: Scores, tokens: NDArray[np.integer]) -> list[dict[str, Any]]:
    """Accuracy on tokens that repeat an earlier passage, by the distance to it.

    A token repeats a passage if the ``COPY_CONTEXT`` tokens before it, and the token itself, have
    occurred before, at last at that distance. A model that copies the passage predicts the token.
    """
    distance = copy_distances(tokens, COPY_CONTEXT)[1:]
    rows, repeats = [], distance > 0
    bins = np.log2(np.maximum(distance, 1)).astype(np.int64)
    for number in np.unique(bins[repeats]).tolist():
        chosen = repeats & (bins == number)
        rows.append(
            {
                "distance_from": 2**number,
                "tokens": int(chosen.sum()),
                "accuracy": float(np.mean(scores.is_right[chosen])),
                "bits_per_token": float(np.mean(scores.bits[chosen], dtype=np.float64)),
            }
        )
    return rows


def copy_distances(tokens: NDArray[np.integer], context: int) -> NDArray[np.int64]:
    """Distances of tokens to their last occurrence after the same ``context`` tokens, int64 [N].

    The distance of a token without an earlier occurrence is 0.

    Example:
        >>> copy_distances(np.array([1, 2, 3, 9, 1, 2, 3, 1, 2, 4]), 2).tolist()
        [0, 0, 0, 0, 0, 0, 4, 0, 0, 0]
    """
    distances = np.zeros(len(tokens), np.int64)
    if len(tokens) <= context:
        return distances
    # Equal passages have equal ids: the id of a passage, extended by a token, is renumbered.
    ids = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    codes = ids.copy()
    for shift in range(1, context + 1):
        pairs = codes[shift:] * (ids.max() + 1) + ids[:-shift]
        codes = np.concatenate([codes[:shift], np.unique(pairs, return_inverse=True)[1]])
    places = np.arange(context, len(tokens))
    order = np.argsort(codes[context:], kind="stable")
    ordered, at = codes[context:][order], places[order]
    same = ordered[1:] == ordered[:-1]
    distances[at[1:][same]] = at[1:][same] - at[:-1][same]
    return distances
