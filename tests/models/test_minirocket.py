"""MiniRocket features: the paper's equations in NumPy, aeon's program, and streams of them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_linattn import inference, models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.meshes import make_mesh
from tests.nn.cases import call, run_steps

ROWS, STEPS = 3, 40
KERNELS = list(itertools.combinations(range(9), 3))
"""Places of the weights 2."""


def series(seed, rows, steps, channels):
    """Multiples of 1/8, whose convolutions float32 holds exactly: no rounding crosses a bias."""
    x = np.random.default_rng(seed).normal(size=(rows, steps, channels)).cumsum(axis=1)
    return (np.round(8 * x) / 8).astype(np.float32)


@functools.cache
def fitted(channels, length=30, features=400, seed=0):
    x = series(5, 6, length, channels)
    return models.MiniRocketFeatures.fit(x, num_features=features, seed=seed)


cases = pytest.mark.parametrize("channels", [1, 2, 12])


def convolutions(model, x):
    """(dilation index, kernel, values at all positions) in float64, of one series [T, C]."""
    channels = np.asarray(model.channels[...])
    for i, dilation in enumerate(model.dilations):
        for k, twos in enumerate(KERNELS):
            chosen = [c for c in channels[i, k] if c < x.shape[1]]
            z = x[:, chosen].astype(np.float64).sum(axis=1)
            values = np.zeros(len(x))
            for t, j in itertools.product(range(len(x)), range(9)):
                if 0 <= t + (j - 4) * dilation < len(x):
                    values[t] += (2 if j in twos else -1) * z[t + (j - 4) * dilation]
            yield i, k, values


def equations(model, x):
    """Proportions of positive values of convolution minus bias, of one series [T, C]."""
    biases, features = list(np.asarray(model.biases[...], np.float64)), []
    for i, k, values in convolutions(model, x):
        if (i + k) % 2:  # without padding
            ends = 4 * model.dilations[i]
            values = values[ends : max(len(x) - ends, ends)]
        for _ in range(model.features_per_kernel[i]):
            positive = values > biases.pop(0)
            features.append(positive.mean() if len(values) else 0.0)
    assert not biases
    return np.array(features)


@cases
def test_features_are_the_papers_equations(channels):
    """Of series as long as in training, longer ones, and shorter ones down to one observation."""
    model = fitted(channels)
    assert model.num_features == 336 and model.dilations == (1, 2, 3)
    x, lengths = series(1, 5, STEPS, channels), np.array([30, STEPS, 14, 8, 1])
    features = call(model, x, mask=np.arange(STEPS) < lengths[:, None])
    assert features.shape == (5, 336) and features.dtype == np.float32
    want = [equations(model, row[:n]) for row, n in zip(x, lengths, strict=True)]
    assert_close(features, np.stack(want), "float32")
    assert_close(call(model, x), np.stack([equations(model, row) for row in x]), "float32")
    assert 0.2 < features[0].mean() < 0.8


@pytest.mark.parametrize(("length", "features"), [(9, 84), (9, 10_000), (100, 2_000), (999, 9_996)])
def test_dilations_are_evenly_spaced_exponents(length, features):
    model = models.MiniRocketFeatures(1, length, num_features=features, rngs=nnx.Rngs(0))
    per_kernel = features // 84
    assert model.num_features == 84 * per_kernel == len(model.biases[...])
    assert sum(model.features_per_kernel) == per_kernel
    exponents = np.linspace(0, np.log2((length - 1) / 8), min(per_kernel, 32))
    assert set(model.dilations) == set(np.floor(2**exponents).astype(int).tolist())
    assert all(8 * d < length for d in model.dilations)


@cases
def test_biases_are_quantiles_of_convolutions_of_a_training_series(channels):
    """Each kernel's of one series, over all positions; levels are multiples of the golden ratio."""
    x, lengths = series(5, 6, 25, channels), [25, 25, 20, 25, 11, 4]
    mask = np.arange(25) < np.array(lengths)[:, None]
    model = models.MiniRocketFeatures.fit(x, mask=mask, num_features=250)
    levels = iter(np.arange(1, 169) * (1 + 5**0.5) / 2 % 1)
    biases = iter(np.asarray(model.biases[...]))
    used = set()
    every = [convolutions(model, row[:n]) for row, n in zip(x, lengths, strict=True)]
    for found in zip(*every, strict=True):
        width = model.features_per_kernel[found[0][0]]
        level = list(itertools.islice(levels, width))
        bias = list(itertools.islice(biases, width))
        errors = [np.abs(np.quantile(values, level) - bias).max() for *_, values in found]
        assert min(errors) < 1e-5
        used.add(int(np.argmin(errors)))
    assert used == set(range(6))


def test_convolutions_sum_random_subsets_of_channels():
    model = models.MiniRocketFeatures(20, 500, rngs=nnx.Rngs(0))
    channels = np.asarray(model.channels[...])
    assert channels.shape == (len(model.dilations), 84, 9)
    sizes = (channels < 20).sum(axis=-1)
    for row, size in zip(channels.reshape(-1, 9), sizes.ravel(), strict=True):
        assert len(set(row[:size])) == size and (row[size:] == 20).all()
    # The logarithm to base 2 of a size is rounded down from a uniform one below log2(10).
    sizes = np.bincount(sizes.ravel(), minlength=10) / sizes.size
    np.testing.assert_allclose(sizes[1:], np.diff(np.log(np.arange(1, 11))) / np.log(10), atol=0.05)
    uses = np.bincount(channels[channels < 20], minlength=20) / (channels < 20).sum()
    np.testing.assert_allclose(uses, 1 / 20, atol=0.01)
    assert (np.asarray(models.MiniRocketFeatures(1, 9, rngs=nnx.Rngs(0)).channels[...]) == 0).all()


@given(seed=st.integers(0, 1000), channels=st.sampled_from([1, 2]), valid=st.floats(0.2, 1))
def test_a_stream_has_the_features_of_the_series_so_far(seed, channels, valid):
    """After every observation, bit by bit, and where steps are masked."""
    model, x = fitted(channels), series(seed, ROWS, STEPS, channels)
    mask = np.random.default_rng(seed).random(x.shape[:2]) < valid
    streamed, state = run_steps(model, x, model.init_state(ROWS), mask)
    t = seed % STEPS
    for end in (t, STEPS - 1):
        features, after = call(model, x, mask=mask & (np.arange(STEPS) <= end), return_state=True)
        assert_same_bits(streamed[:, end], features)
    assert_same_bits(jax.tree.map(np.asarray, state), after)
    if mask[0, : t + 1].any():
        assert_close(streamed[0, t], equations(model, x[0, : t + 1][mask[0, : t + 1]]), "float32")
    assert state.num_observations.tolist() == mask.sum(axis=1).tolist()


@given(seed=st.integers(0, 1000), channels=st.sampled_from([1, 12]))
def test_rounding_does_not_distinguish_streams_from_calls(seed, channels):
    """Of series whose convolutions float32 does not hold exactly, of any size."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(6, 25, channels)) * 10.0 ** random.uniform(-4, 4)
    x = np.round(x, 2).astype(np.float32) if seed % 2 else x.astype(np.float32)
    model = models.MiniRocketFeatures.fit(x, num_features=250, seed=seed)
    streamed, _ = run_steps(model, x[:ROWS], model.init_state(ROWS))
    assert_same_bits(streamed[:, -1], call(model, x[:ROWS]))


@given(seed=st.integers(0, 1000), split=st.integers(1, STEPS - 1))
def test_a_call_resumes_from_the_state_of_another(seed, split):
    model, x = fitted(2), series(seed, ROWS, STEPS, 2)
    options = {"return_state": True}
    whole = call(model, x, **options)
    first = np.broadcast_to(np.arange(STEPS) < split, x.shape[:2])
    _, state = call(model, x, mask=first, **options)
    assert_same_bits(call(model, x, mask=~first, state=state, **options), whole)


def test_every_step_has_the_features_of_a_step():
    model, x = fitted(2), series(2, ROWS, STEPS, 2)
    mask = np.random.default_rng(3).random(x.shape[:2]) < 0.7
    options = {"mask": mask, "every_step": True, "return_state": True}
    streamed, state = run_steps(model, x, model.init_state(ROWS), mask)
    every, after = call(model, x, **options)
    assert_same_bits((every, after), (streamed, jax.tree.map(np.asarray, state)))
    assert_same_bits(call(model, x, state=model.init_state(ROWS), **options), (every, after))


def test_padding_changes_nothing():
    model, x = fitted(2), series(4, ROWS, 25, 2)
    want = call(model, x)
    for seed in range(3):
        places = np.sort(np.random.default_rng(seed).permutation(STEPS)[:25])
        padded, mask = np.full((ROWS, STEPS, 2), np.nan, np.float32), np.zeros(STEPS, bool)
        padded[:, places], mask[places] = x, True
        mask = np.broadcast_to(mask, (ROWS, STEPS))
        assert_same_bits(call(model, padded, mask=mask), want)
        assert_same_bits(run_steps(model, padded, model.init_state(ROWS), mask)[0][:, -1], want)
    empty = call(model, padded, mask=np.zeros((ROWS, STEPS), bool))
    assert_same_bits(empty, np.zeros_like(want))
    np.testing.assert_array_equal(model.read(model.init_state(ROWS)), 0)


def test_an_exported_step_gives_the_same_bits():
    model, x = fitted(2), jnp.asarray(series(6, 2, 30, 2))
    state = call(model, x, return_state=True)[1]
    step = jax.jit(lambda x, state: model.step(x, state))
    saved = bytes(jax.export.export(step)(x[:, 0], state).serialize())
    again = jax.export.deserialize(bytearray(saved)).call(x[:, 0], state)
    assert_same_bits(again, step(x[:, 0], state))
    assert isinstance(again[1], models.MiniRocketState)


def test_a_batch_split_over_devices_gives_the_same_bits():
    model, x = fitted(2), series(6, 2, 30, 2)
    rows = NamedSharding(make_mesh(AxisType.Explicit, data=2), PartitionSpec("data"))
    features, state = jax.jit(lambda x: model(x, return_state=True))(jax.device_put(x, rows))
    assert features.sharding.spec[0] == state.recent.sharding.spec[0] == "data"
    assert_same_bits(np.asarray(features), call(model, x))


def test_it_streams_without_end_in_constant_memory():
    model, x = fitted(2), series(6, 2, 300, 2)
    assert model.streams and model.constant_memory and model.num_positions is None
    stream = inference.Stream(model, batch_size=2)
    for t in range(x.shape[1]):
        features = stream.step(x[:, t])
    assert stream.num_compilations == 1
    assert_same_bits(np.asarray(features), call(model, x))
    sizes = inference.summarize(model, jax.ShapeDtypeStruct((1, 2), "float32"))
    assert sizes.state_bytes == 4 * (1 + 8 * 3 * 2 + 336)
    assert_same_bits(model.init_state(2), model.init_state(2, 10**9))


def test_a_seed_always_gives_the_same_model(tmp_path):
    x = series(5, 6, 25, 3)
    model = models.MiniRocketFeatures.fit(x, num_features=100, seed=1)
    again = models.MiniRocketFeatures.fit(jnp.asarray(x), num_features=100, seed=1)
    assert_same_bits(nnx.state(again), nnx.state(model))
    other = models.MiniRocketFeatures.fit(x, num_features=100, seed=2)
    assert (other.channels[...] != model.channels[...]).any()
    assert (other.biases[...] != model.biases[...]).any()
    models.save_model(tmp_path / "model", model)
    loaded = models.load_model(tmp_path / "model")
    assert_same_bits(nnx.state(loaded), nnx.state(model))
    assert nnx.graphdef(loaded) == nnx.graphdef(model)
    assert not jax.tree.leaves(nnx.state(model, nnx.Param))  # nothing to train by gradients


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_sums_are_at_least_float32(dtype):
    with jax.enable_x64(dtype == "float64"):
        model, x = fitted(2), jnp.asarray(series(7, ROWS, 25, 2)).astype(dtype)
        features, state = jax.jit(lambda x: model(x, return_state=True))(x)
        wide = "float64" if dtype == "float64" else "float32"
        assert features.dtype == state.recent.dtype == wide
        wanted = [equations(model, np.asarray(row, np.float32)) for row in x]
        assert_close(features, np.stack(wanted), "float32")
        _, after = model.step(x[:, 0], model.init_state(ROWS, dtype=wide))
        assert after.recent.dtype == wide


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_channels": 0}, "num_channels must be at least 1, got 0"),
        ({"series_length": 8}, "series_length must be at least 9, got 8"),
        ({"num_features": 83}, "num_features must be at least 84, got 83"),
        ({"max_dilations": 0}, "max_dilations must be at least 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    options = {"num_channels": 1, "series_length": 9} | options
    with pytest.raises(ValueError, match=message):
        models.MiniRocketFeatures(**options, rngs=nnx.Rngs(0))


def test_training_series_that_do_not_fit_are_refused():
    fit, x = models.MiniRocketFeatures.fit, np.zeros((2, 9, 1), np.float32)
    with pytest.raises(ValueError, match=r"expected series \[N, T, C\], .*, got shape \(9, 1\)"):
        fit(x[0])
    with pytest.raises(ValueError, match=r"got shape \(0, 9, 1\)"):
        fit(x[:0])
    with pytest.raises(TypeError, match=r"expected series as an array \[N, T, C\], got list"):
        fit([[1.0]])
    with pytest.raises(ValueError, match=r"at least 9 observations, .*, got lengths from 8 to 8"):
        fit(x[:, :8])
    with pytest.raises(ValueError, match="got lengths from 0 to 9; remove series without"):
        fit(x, mask=np.arange(9) < np.array([[9], [0]]))
    with pytest.raises(ValueError, match=r"mask must have shape \(2, 9\), got \(2, 8\)"):
        fit(x, mask=np.ones((2, 8), bool))
    x[1, 8] = np.nan
    with pytest.raises(ValueError, match="expected finite series, got NaN or infinity"):
        fit(x)
    fit(x, mask=np.arange(9) < np.array([[9], [8]]), num_features=84)


def test_calls_that_do_not_fit_are_refused():
    model, x = fitted(2), series(0, ROWS, 25, 2)
    with pytest.raises(ValueError, match=r"expected observations \[B, T >= 1, 2\], got shape"):
        model(x[..., :1])
    with pytest.raises(ValueError, match="does not support packed sequences; pass each series"):
        model(x, segment_ids=np.zeros((ROWS, 25), np.int32))
    with pytest.raises(ValueError, match="the state has 2 rows, but the observations have 3"):
        model.step(x[:, 0], model.init_state(2))


@pytest.mark.slow
@cases
def test_features_are_those_of_aeon(channels):
    """With aeon's random channels and biases, at the paper's 9,996 features, and by steps."""
    rocket = pytest.importorskip("aeon.transformations.collection.convolution_based")
    x = series(8, 20, 100, channels)
    other = rocket.MiniRocket(random_state=0).fit(x.transpose(0, 2, 1))
    want = np.asarray(other.transform(x.transpose(0, 2, 1)))
    sizes, chosen, dilations, widths, biases = other.parameters
    model = models.MiniRocketFeatures(channels, 100, rngs=nnx.Rngs(0))
    assert model.dilations == tuple(dilations) and model.features_per_kernel == tuple(widths)
    subsets = np.full((len(sizes), min(channels, 9)), channels, np.int32)
    for subset, part in zip(subsets, np.split(chosen, np.cumsum(sizes)[:-1]), strict=True):
        subset[: len(part)] = part
    model.channels[...] = jnp.asarray(subsets).reshape(model.channels.shape)
    model.biases[...] = jnp.asarray(biases)
    assert want.shape == (20, 9_996)
    np.testing.assert_allclose(call(model, x), want, atol=1e-5)
    stream = inference.Stream(model, batch_size=20)
    for t in range(100):
        streamed = stream.step(x[:, t])
    np.testing.assert_allclose(streamed, want, atol=1e-5)
