"""Recurrent cells in place of attention, and the verdicts on both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.recurrent import accuracy
from experiments.recurrent.layer import CELLS, RecurrentLayer, replace_attention
from experiments.verdicts import FAILS, HOLDS, OPEN
from flax_linattn import models


def classifier(cell: str | None) -> models.SequenceClassifier:
    options = {"features": 8, "num_layers": 2, "num_heads": 2, "mechanism": "softmax"}
    model = models.SequenceClassifier(3, 2, rngs=nnx.Rngs(0), **options)
    if cell is not None:
        replace_attention(model, cell, nnx.Rngs(1))
    return model


@pytest.mark.parametrize("cell", CELLS)
def test_padding_changes_nothing_and_steps_give_the_same(cell: str) -> None:
    model, x = classifier(cell), jax.random.normal(jax.random.key(0), (2, 5, 3))
    padded = jnp.full((2, 8, 3), jnp.nan).at[:, jnp.array([0, 2, 3, 4, 7])].set(x)
    want = model(x)
    np.testing.assert_allclose(model(padded, mask=~jnp.isnan(padded[..., 0])), want, atol=1e-6)
    state = model.init_state(2)
    for t in range(5):
        logits, state = model.step(x[:, t], state)
    np.testing.assert_allclose(logits, want, atol=1e-6)


@pytest.mark.parametrize(("cell", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_only_the_layer_that_mixes_tokens_is_another_one(cell: str, gates: int) -> None:
    layer = nnx.state(RecurrentLayer(cell, 8, rngs=nnx.Rngs(0)), nnx.Param)
    assert sum(x.size for x in jax.tree.leaves(layer)) == gates * (2 * 8 * 8 + 8)
    both = [nnx.to_flat_state(nnx.state(classifier(c), nnx.Param)) for c in (None, cell)]
    ours, theirs = ({k: v[...] for k, v in flat if "attention" not in k} for flat in both)
    assert ours.keys() == theirs.keys() and ours
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_packed_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="one sequence per row"):
        classifier("GRU").backbone.blocks[0](jnp.ones((1, 2, 8)), segment_ids=jnp.ones((1, 2), int))


@pytest.mark.parametrize(
    ("worse", "word", "said"),
    [(0.5, HOLDS, "better"), (-0.5, FAILS, "worse"), (-0.02, HOLDS, "worse, comparable")],
)
def test_attention_is_judged_by_its_advantage(worse: float, word: str, said: str) -> None:
    def row(data: int, model: str, nll: float) -> dict:
        runs = [{"seed": seed, "nll": nll + data + seed / 10} for seed in range(3)]
        return {"family": "events", "data": str(data), "model": model, "runs": runs}

    rows = [row(d, "aaren", 1) for d in range(3)]
    rows += [row(d, "GRU", 1 + worse + d / 1000) for d in range(3)]
    verdict = accuracy.judge_against("aaren", "GRU")(rows)
    assert verdict.word == word and f"over 3 sets ({said}): 0 {worse:+.3f}" in verdict.ours
    assert accuracy.judge_against("aaren", "GRU")(rows[:2] + rows[3:5]).word.startswith(OPEN)
