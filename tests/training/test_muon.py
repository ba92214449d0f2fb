"""Muon: its matrices, its numbers against float64 NumPy, and training with it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from flax_linattn import models
from flax_linattn.training import (
    Interrupted,
    OptimizerOptions,
    Parallel,
    make_optimizer,
    muon,
    muon_dimension_numbers,
    reciprocal_sqrt,
)
from tests.meshes import make_mesh
from tests.training import problem
from tests.training.problem import Net, bits, fingerprint, make_batches, signal_at
from tests.training.test_optimizers import trained

SHAPES = {
    "layer": {"kernel": (8, 12), "bias": (12,)},
    "tall": {"kernel": (12, 5)},
    "stack": {"kernel": (3, 6, 4)},
    "query": {"kernel": (8, 2, 3), "bias": (2, 3)},
    "out": {"kernel": (2, 3, 8)},
    "head": {"kernel": (8, 5)},
    "embedding": {"table": (5, 8)},
}
MATRICES = {
    "layer": (8, 12),
    "tall": (12, 5),
    "stack": (3, 6, 4),
    "query": (8, 6),
    "out": (6, 8),
}
"""Shape of the matrices that each kernel of Muon is."""


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: rng.normal(size=s).astype(np.float32), SHAPES, is_leaf=is_shape)


def orthogonalize(matrix):
    """Five quintic Newton-Schulz steps (Jordan et al., 2024), float64."""
    if matrix.ndim == 3:
        return np.stack([orthogonalize(each) for each in matrix])
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (np.sqrt(np.sum(x**2)) + 1e-8)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def muon_in_numpy(params, all_grads, rate, decay):
    """Muon with Nesterov momentum, scaled as in Moonlight, and AdamW with Nesterov momentum."""
    moments = {}
    expected = jax.tree.map(np.float64, params)
    for t, grads in enumerate(all_grads):
        for layer, names in grads.items():
            for name, grad in names.items():
                g, w = np.float64(grad), expected[layer][name]
                m, v = moments.get((layer, name), (0.0, 0.0))
                is_muon = name == "kernel" and layer in MATRICES
                b1, b2 = (0.95 if is_muon else 0.9), 0.999
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
                moments[layer, name] = m, v
                nesterov = b1 * m / (1 - b1 ** (t + 2)) + (1 - b1) * g / (1 - b1 ** (t + 1))
                if is_muon:
                    shape = MATRICES[layer]
                    u = orthogonalize(nesterov.reshape(shape)).reshape(w.shape)
                    u = 0.2 * np.sqrt(max(shape[-2:])) * u
                else:
                    u = nesterov / (np.sqrt(v / (1 - b2 ** (t + 1))) + 1e-8)
                expected[layer][name] = w - rate(t) * (u + decay * w * (w.ndim >= 2))
    return expected


def test_muon_is_newton_schulz_of_each_matrix():
    params, steps = arrays(), [arrays(seed) for seed in range(1, 6)]
    optimizer = muon(reciprocal_sqrt(0.05, 3), weight_decay=0.1)
    expected = muon_in_numpy(
        params, steps, lambda t: 0.05 * min(1, t / 3) / np.sqrt(max(t, 3)), decay=0.1
    )
    moved = trained(optimizer, params, steps)
    for layer, names in moved.items():
        for name, value in names.items():
            np.testing.assert_allclose(value, expected[layer][name], rtol=0, atol=3e-6)


def test_all_parameters_decay_without_a_mask():
    params = jax.tree.map(jnp.ones_like, arrays())
    options = OptimizerOptions("muon", 0.1, weight_decay=0.1, decay_mask="all")
    grads = jax.tree.map(jnp.zeros_like, params)
    moved = trained(make_optimizer(options, 10, 10), params, [grads])
    for value in jax.tree.leaves(moved):
        np.testing.assert_allclose(value, 0.99, rtol=1e-6)


ATTENTION = "backbone.blocks.attention."
OF_MUON = {
    *(f"{ATTENTION}{name}_projection.kernel" for name in ("query", "key", "value", "out", "gate")),
    *(f"{ATTENTION}token_projections.{name}.kernel" for name in ("beta", "log_decay")),
    *(f"backbone.blocks.feed_forward.{name}.kernel" for name in ("expand", "gate", "contract")),
}
OF_ADAMW = {
    *(f"{ATTENTION}{name}_projection.bias" for name in ("query", "key", "value", "out", "gate")),
    *(f"{ATTENTION}token_projections.{name}.bias" for name in ("beta", "log_decay")),
    *(f"{ATTENTION}mechanism_parameters.{name}" for name in ("decay_logit", "time_decay")),
    f"{ATTENTION}mechanism_parameters.time_first",
    f"{ATTENTION}query",
    f"{ATTENTION}short_convolution.kernel",
    *(f"{ATTENTION}{name}_norm.scale" for name in ("query", "key", "output")),
    *(f"backbone.blocks.feed_forward.{name}.bias" for name in ("expand", "gate", "contract")),
    *(f"backbone.blocks.{name}_norm.scale" for name in ("attention", "feed_forward")),
    *(f"backbone.blocks.{name}_scale.scale" for name in ("attention", "feed_forward")),
    "backbone.final_norm.scale",
    "backbone.input_embedding.table",
    "backbone.input_embedding.positions.table",
    "head.kernel",
}


def groups(model):
    """The names of the parameters of Muon and of AdamW, without the numbers of blocks."""
    params = nnx.state(model, nnx.Param)
    names = {True: set(), False: set()}
    axes = jax.tree.leaves(
        muon_dimension_numbers(params),
        is_leaf=lambda x: x is None or isinstance(x, optax.contrib.MuonDimensionNumbers),
    )
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for path, numbers in zip(paths, axes, strict=True):
        keys = [getattr(key, "key", None) for key in path]
        names[numbers is not None].add(".".join(key for key in keys if isinstance(key, str)))
    return names[True], names[False]


def test_groups_of_a_language_model():
    layers = models.Layers(
        features=8, num_layers=5, num_heads=2, norm_type="rms", activation="swiglu",
        mechanism=("aaren", "gated_delta", "rwkv", "retention:learned_decay=True", "softmax"),
        normalize_qk="rms", output_norm="rms", output_gate="sigmoid", short_conv=4,
        layer_scale=0.1,
    )  # fmt: skip
    model = models.LanguageModel(
        11, tied=False, position="learned", max_length=6, layers=layers, rngs=nnx.Rngs(0)
    )
    of_muon, of_adamw = groups(model)
    assert of_muon == OF_MUON
    assert of_adamw == OF_ADAMW


def test_groups_of_other_models():
    """Outside of the blocks, only hidden layers; and a layer of Flax, with all heads together."""
    options = {"features": 8, "num_layers": 1, "num_heads": 2, "rngs": nnx.Rngs(0)}
    for model, hidden in (
        (models.SequenceClassifier(3, 2, **options), set()),
        (models.Forecaster(3, 4, **options), set()),
        (models.DecisionTransformer(3, 2, **options), set()),
        (
            models.PatchForecaster(3, 4, context=8, patch_length=4, known_future=(1,), **options),
            set(),
        ),
        (models.EventForecaster(3, **options), {"hidden.kernel"}),
        (nnx.Linear(2, 3, rngs=nnx.Rngs(0)), set()),
    ):
        assert {name for name in groups(model)[0] if ".blocks." not in name} == hidden
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    numbers = muon_dimension_numbers({"attention": nnx.to_pure_dict(nnx.state(layer, nnx.Param))})
    axes = {name: tuple(numbers["attention"][name]["kernel"]) for name in ("query", "key", "value")}
    assert set(axes.values()) == {((-3,), (-2, -1))}
    assert tuple(numbers["attention"]["out"]["kernel"]) == ((-3, -2), (-1,))


@pytest.mark.parametrize("parallel", [
    Parallel("jit", "data=2", shard_parameters=True), Parallel("pmap", "data=2")
], ids=["jit", "pmap"])  # fmt: skip
def test_two_devices_train_as_one(parallel, tmp_path):
    def without_dropout(model, batch, key):
        return problem.loss_fn(model, batch, None)

    one, two = (
        problem.train(tmp_path / p.strategy, parallel=p, loss=without_dropout, optimizer=muon(0.05))
        for p in (Parallel("none"), parallel)
    )
    for a, b in zip(*(jax.tree.leaves(nnx.state(model)) for model, _ in (one, two)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_heads_on_two_devices():
    """Kernels with an axis of heads that is split, and a split matrix."""
    mesh = make_mesh(model=2)
    specs = {"query": (None, "model"), "out": ("model",), "layer": (None, "model")}
    params, steps = arrays(), [arrays(1), arrays(2)]
    split = jax.tree.map(jnp.asarray, params)
    for layer, axes in specs.items():
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        split[layer]["kernel"] = jax.device_put(params[layer]["kernel"], sharding)
    optimizer = muon(0.05, weight_decay=0.1)
    one, two = (trained(optimizer, start, steps) for start in (params, split))
    assert len(two["query"]["kernel"].sharding.device_set) == 2
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muon", "lion"])
@pytest.mark.parametrize("runs", [None, 2], ids=["one run", "two seeds"])
def test_a_run_resumes_to_equal_bits(name, runs, tmp_path):
    options = OptimizerOptions(name, 0.02, weight_decay=0.1, clip_norm=1.0)
    optimizer = make_optimizer(options, 15, 5, inject_hyperparams=runs is not None)
    whole, _ = problem.train(tmp_path / "whole", runs=runs, optimizer=optimizer)
    parts = {"runs": runs, "optimizer": optimizer}
    with pytest.raises(Interrupted):
        problem.train(tmp_path / "parts", train=signal_at(make_batches(), 7), **parts)
    model, _ = problem.train(tmp_path / "parts", resume=True, **parts)
    assert bits(model) == bits(whole)
    assert fingerprint(tmp_path / "parts")["arrays"] == fingerprint(tmp_path / "whole")["arrays"]


@pytest.mark.parametrize("name", ["muon", "lion"])
def test_each_of_two_runs_is_the_one_that_trains_alone(name, tmp_path):
    options = OptimizerOptions(name, 0.02)
    rates = [{"learning_rate": 0.02}, {"learning_rate": 0.005}]
    optimizer = make_optimizer(options, 15, 5, inject_hyperparams=True)
    together, _ = problem.train(
        tmp_path / "both", runs=2, optimizer=optimizer, hyperparameters=rates
    )
    for r, rate in enumerate(rates):
        optimizer = make_optimizer(OptimizerOptions(name, rate["learning_rate"]), 15, 5)
        alone, _ = problem.train(
            tmp_path / f"{r}", model=Net(r), seed=3 + r, train=make_batches(seed=r),
            optimizer=optimizer,
        )  # fmt: skip
        for a, b in zip(
            *(jax.tree.leaves(nnx.state(m)) for m in (together[r], alone)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
