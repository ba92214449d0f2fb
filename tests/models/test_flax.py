"""The modules inside Flax and JAX: graph modes, Linen, jit, vmap, eight devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from flax_linattn import models, nn
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import CAUSAL, normal

CHANNELS, LENGTH = 8, 4
slow = pytest.mark.slow

MODULES = {
    "attention": partial(nn.Attention, CHANNELS, 2),
    "block": partial(nn.TransformerBlock, CHANNELS, 2, hidden_features=12, dropout_rate=0.2),
    "classifier": partial(
        models.SequenceClassifier, CHANNELS, 3, features=8, num_layers=1, num_heads=2,
        hidden_features=12, pooling="flatten", max_length=LENGTH, dropout_rate=0.2,
    ),
}  # fmt: skip
CASES = [
    pytest.param(
        *case.values,
        kind,
        id=f"{kind}-{case.id}",
        marks=case.marks
        or (() if kind == "attention" or (case.id, kind) == ("aaren", "classifier") else slow),
    )
    for case in CAUSAL
    for kind in MODULES
]
"""Every mechanism in every module."""

graph_modes = pytest.mark.parametrize("graph_mode", [False, True], ids=["tree", "graph"])
cases = pytest.mark.parametrize(("mechanism", "kind"), CASES)


def make(mechanism, kind, seed=0):
    return MODULES[kind](mechanism=mechanism, rngs=nnx.Rngs(seed))


def call_options(kind):
    """Arguments of the call: the classifier is causal by construction."""
    return {} if kind == "classifier" else {"is_causal": True}


def train(kind, module, x, key):
    """A training loss; the attention layer has no dropout."""
    options = call_options(kind) | ({} if kind == "attention" else {"dropout_key": key})
    return jnp.mean(jnp.square(module(x, **options)))


@partial(jax.jit, static_argnums=(0, 1))
def train_value_and_grad(kind, graph, params, x, key):
    return jax.value_and_grad(lambda params: train(kind, nnx.merge(graph, params), x, key))(params)


@partial(jax.jit, static_argnums=(0, 1))
def outputs_and_grads(options, graph, params, x):
    """Outputs, and the gradients of their mean square, without dropout."""

    def loss(params):
        y = nnx.merge(graph, params)(x, **dict(options))
        return jnp.mean(jnp.square(y)), y

    grads, y = jax.grad(loss, has_aux=True)(params)
    return y, grads


@graph_modes
@cases
def test_split_differentiate_merge_under_jit(mechanism, kind, graph_mode):
    """nnx.split, jax.grad over nnx.Param with a dropout key under jax.jit, nnx.merge."""
    x, key = normal(1, 2, LENGTH, CHANNELS), jax.random.key(0)
    with nnx.set_graph_mode(graph_mode):
        graph, params, rest = nnx.split(make(mechanism, kind), nnx.Param, ...)
        assert jax.tree.leaves(rest) == []  # no random state, no caches: parameters only
        loss, grads = train_value_and_grad(kind, graph, params, x, key)
        assert jax.tree.structure(grads) == jax.tree.structure(params)
        assert np.isfinite(loss)
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
        smaller = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        assert train_value_and_grad(kind, graph, smaller, x, key)[0] < loss


@graph_modes
def test_nnx_transforms(graph_mode):
    """nnx.jit and nnx.value_and_grad of a module give what jax's own give."""
    x, key = normal(2, 2, LENGTH, CHANNELS), jax.random.key(0)
    with nnx.set_graph_mode(graph_mode):
        model = make("aaren", "classifier")
        graph, params = nnx.split(model, nnx.Param)

        @nnx.jit
        def by_nnx(model, x, key):
            return nnx.value_and_grad(lambda model: train("classifier", model, x, key))(model)

        loss, grads = by_nnx(model, x, key)
        want, want_grads = train_value_and_grad("classifier", graph, params, x, key)
    assert_close(loss, want, "float32")
    got = jax.tree.leaves(grads)
    assert len(got) == len(jax.tree.leaves(want_grads))
    for g, w in zip(got, jax.tree.leaves(want_grads), strict=True):
        assert_close(g, w, "float32")


@cases
def test_models_of_equal_options_share_their_graph(mechanism, kind):
    """Otherwise a second model would compile everything again."""
    first, second = make(mechanism, kind, 0), make(mechanism, kind, 1)
    assert nnx.graphdef(first) == nnx.graphdef(second)
    assert hash(nnx.graphdef(first)) == hash(nnx.graphdef(second))


LINEN = [
    pytest.param(
        *case.values,
        mode,
        id=f"{case.id}-{'graph' if mode else 'tree'}",
        marks=case.marks or (slow if mode and case.id != "attention-aaren" else ()),
    )
    for case in CASES
    for mode in (False, True)
]
"""The graph mode is a fast test of one layer; with all others it is slow."""


@pytest.mark.parametrize(("mechanism", "kind", "graph_mode"), LINEN)
def test_linen_users_get_the_modules(mechanism, kind, graph_mode):
    """nnx.bridge.to_linen: init, apply, gradients, and dropout by an argument."""
    x = normal(3, 2, LENGTH, CHANNELS)
    options = call_options(kind)
    build = MODULES[kind]
    with nnx.set_graph_mode(graph_mode):
        linen = nnx.bridge.to_linen(build.func, *build.args, **build.keywords, mechanism=mechanism)
        variables = jax.jit(partial(linen.init, **options))(jax.random.key(0), x)
        graph, params = nnx.split(make(mechanism, kind), nnx.Param)

        def shapes(tree):
            return sorted(a.shape for a in jax.tree.leaves(tree))

        assert shapes(variables["params"]) == shapes(params)

        @jax.jit
        def value_and_grad(variables, x):
            def loss(p):
                y = linen.apply({**variables, "params": p}, x, **options)
                return jnp.mean(jnp.square(y)), y

            return jax.value_and_grad(loss, has_aux=True)(variables["params"])

        (_, y), grads = value_and_grad(variables, x)
        same = nnx.merge(graph, nnx.State(variables["params"]))
        want, _ = outputs_and_grads(tuple(options.items()), *nnx.split(same), x)
    assert_close(y, want, "float32")
    assert shapes(grads) == shapes(params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("kind", ["attention", pytest.param("block", marks=slow), "classifier"])
def test_linen_users_step(kind):
    """``init_state`` and ``step`` through the bridge: by name, bound, and from a parent.

    The classifier holds the block.
    """
    x = normal(3, 2, LENGTH, CHANNELS)
    build = MODULES[kind]
    layer = nnx.bridge.to_linen(build.func, *build.args, **build.keywords, mechanism="aaren")

    class Parent(linen.Module):
        def setup(self):
            self.layer = layer.clone(parent=None)

        def __call__(self, x):
            return self.layer(x, **call_options(kind))

        def init_state(self, batch_size):
            return self.layer.init_state(batch_size)

        def step(self, x, state):
            return self.layer.step(x, state)

    parent = Parent()
    variables = jax.jit(parent.init)(jax.random.key(0), x)
    alone = {"params": variables["params"]["layer"]}
    ways = {
        "apply": (
            lambda: layer.apply(alone, 2, nnx_method="init_state"),
            jax.jit(lambda x, state: layer.apply(alone, x, state, nnx_method="step")),
        ),
        "bind": (
            lambda: layer.bind(alone).init_state(2),
            jax.jit(lambda x, state: layer.bind(alone).step(x, state)),
        ),
        "parent": (
            lambda: parent.apply(variables, 2, method="init_state"),
            jax.jit(lambda x, state: parent.apply(variables, x, state, method="step")),
        ),
    }
    want = jax.jit(parent.apply)(variables, x)
    for init_state, step in ways.values():
        state = init_state()
        for t in range(LENGTH):
            y, state = step(x[:, t], state)
        assert_close(y, want if kind == "classifier" else want[:, -1], "float32")
        assert step._cache_size() == 1


@cases
def test_vmap_over_parameters_and_over_batches(mechanism, kind):
    """An ensemble of three parameter sets, and an extra batch axis."""
    graph, params = nnx.split(make(mechanism, kind), nnx.Param)
    ensemble = jax.tree.map(lambda p: jnp.stack([p, 2 * p, -p]), params)
    options, x = call_options(kind), normal(4, 3, 2, LENGTH, CHANNELS)

    def apply(params, x):
        return nnx.merge(graph, params)(x, **options)

    over_batches = jax.vmap(apply, in_axes=(None, 0))
    got = jax.jit(jax.vmap(over_batches, in_axes=(0, None)))(ensemble, x)
    for i, j in np.ndindex(3, 3):
        member = jax.tree.map(lambda p, i=i: p[i], ensemble)
        want, _ = outputs_and_grads(tuple(options.items()), graph, member, x[j])
        assert_close(got[i, j], want, "float32")


@cases
def test_two_devices_by_pmap_are_one(mechanism, kind):
    """Outputs, and gradients averaged over the devices."""
    graph, params = nnx.split(make(mechanism, kind), nnx.Param)
    options, x = tuple(call_options(kind).items()), normal(5, 2, LENGTH, CHANNELS)

    def on_one_of_many(params, x):
        y, grads = outputs_and_grads(options, graph, params, x)
        return y, jax.lax.pmean(grads, "devices")

    want, want_grads = outputs_and_grads(options, graph, params, x)
    run = jax.pmap(
        on_one_of_many, axis_name="devices", in_axes=(None, 0), devices=jax.devices()[:2]
    )
    y, grads = run(params, x[:, None])
    assert len(y.sharding.device_set) == 2
    assert_close(y[:, 0], want, "float32")
    assert_close(jax.tree.map(lambda g: np.asarray(g)[0], grads), want_grads, "float32")


def test_eight_devices_by_jit_are_one():
    """A batch sharded over a mesh, parameters replicated: the main training path."""
    graph, params = nnx.split(make("aaren", "classifier"), nnx.Param)
    x = normal(6, 16, LENGTH, CHANNELS)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    got = outputs_and_grads(
        (), graph, jax.device_put(params, everywhere), jax.device_put(x, spread)
    )
    assert len(got[0].sharding.device_set) == 8
    assert_close(got, outputs_and_grads((), graph, params, x), "float32")


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_a_step_is_pure(mechanism):
    """Two steps from one state give the same bits: nothing is kept in the module."""
    model = make(mechanism, "classifier")
    x, state = normal(7, 2, CHANNELS), model.init_state(2)
    step = jax.jit(model.step)
    before = jax.tree.map(np.asarray, state)
    first, second = step(x, state), step(x, state)
    assert_same_bits(first, second)
    assert_same_bits(state, before)
