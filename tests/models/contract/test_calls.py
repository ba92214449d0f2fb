"""What comes into a head: dropout keys, arrays that do not fit, states of others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract.tolerances import assert_same_bits
from tests.models.contract.heads import (
    EVERYWHERE,
    FIRST,
    HEADS,
    LENGTH,
    ROWS,
    model_of,
    observations,
)
from tests.nn.cases import call

slow = pytest.mark.slow
FAST = ("classifier", "latents", "window")
"""Of the ways by which keys reach the layers."""


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        pytest.param(*mark.values, id=mark.id, marks=() if mark.id in FAST else slow)
        for mark in FIRST.args[1]
    ],
)
def test_dropout_needs_a_key(name, mechanism):
    model, sure = model_of(name, mechanism, dropout_rate=0.5), model_of(name, mechanism)
    x = observations(name)
    want = call(model, x)
    assert_same_bits(want, call(sure, x))
    first, again, other = (call(model, x, dropout_key=jax.random.key(n)) for n in (1, 1, 2))
    assert_same_bits(first, again)
    assert not np.allclose(first, other, atol=1e-3)
    assert not np.allclose(first, want, atol=1e-3)


@FIRST
def test_observations_that_do_not_fit_are_refused(name, mechanism):
    model, x = model_of(name, mechanism), observations(name)
    layout = ", ".join(map(str, ("B", "T >= 1", *model.observation_shape)))
    for wrong in (x[:, :0], x[0, 0], np.zeros((ROWS, LENGTH, 99, 9))):
        with pytest.raises(ValueError, match=rf"observations \[{layout}\].*, got shape \("):
            model(wrong)
    with pytest.raises(TypeError, match=r"observations as an array .*, got list; convert it with"):
        model([[[1.0, 2.0, 3.0]]])
    for mask in (np.ones((ROWS, LENGTH - 1), bool), np.ones((1, LENGTH), bool)):
        with pytest.raises(ValueError, match=rf"mask must have shape \({ROWS}, {LENGTH}\), got"):
            model(x, mask=mask)
    with pytest.raises(TypeError, match="mask must be bool, True = a real token, got int32"):
        model(x, mask=np.ones((ROWS, LENGTH), np.int32))
    with pytest.raises(TypeError, match="unexpected keyword argument 'masks'"):
        model(x, masks=EVERYWHERE)
    if HEADS[name].packs:
        with pytest.raises(ValueError, match="segment_ids must have shape"):
            model(x, segment_ids=np.ones((ROWS, 3), np.int32))


@FIRST
def test_states_that_do_not_fit_are_refused(name, mechanism):
    model, x = model_of(name, mechanism), observations(name)
    if not HEADS[name].streams:
        return
    kind = type(model.init_state(ROWS)).__name__
    for use in (
        lambda state: model(x, state=state),
        lambda state: model.step(jnp.asarray(x[:, 0]), state),
    ):
        for rows in (1, 3):
            with pytest.raises(
                ValueError, match=f"the state has {rows} rows, but the observations have"
            ):
                use(model.init_state(rows))
        with pytest.raises(ValueError, match=f"expected a {kind} from init_state or an earlier"):
            use((1, 2))
    state = model.init_state(ROWS)
    with pytest.raises(ValueError, match=r"expected observations \[B.*, got shape \("):
        model.step(jnp.asarray(x), state)
    with pytest.raises(ValueError, match=rf"mask must have shape \({ROWS},\), got \(3,\)"):
        model.step(jnp.asarray(x[:, 0]), state, mask=np.ones(3, bool))


@FIRST
def test_numpy_arrays_of_float64_are_taken_without_a_warning(name, mechanism):
    """Where JAX has no float64 they count as float32, as everywhere in JAX."""
    model, x = model_of(name, mechanism), observations(name)
    if x.dtype.kind == "f":
        assert_same_bits(*jax.jit(lambda: (model(x.astype(np.float64)), model(x)))())


@pytest.mark.parametrize("name", ["forecaster", "patches"])
def test_a_level_is_carried_through(name):
    """Shifting and scaling the channels shifts and scales the forecasts of targets 1 and 0."""
    model, x = model_of(name, "aaren"), observations(name)
    y = call(model, x)
    scale, shift = np.array([2.0, 3.0]), np.array([-100.0, 7.0])
    x[..., :2] = x[..., :2] * scale + shift  # the last column is a mark
    np.testing.assert_allclose(call(model, x), y * scale[::-1] + shift[::-1], rtol=2e-3)
