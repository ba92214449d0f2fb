"""Cross-entropy in chunks of tokens equals that of all tokens at once, in less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from flax_linattn import models
from flax_linattn.training import chunked_cross_entropy, smoothed_cross_entropy
from flax_linattn.training.step import _max_array_bytes
from tests.meshes import make_mesh

B, T, C, V = 2, 12, 8, 40


def make_model(tied):
    return models.LanguageModel(
        V, tied=tied, features=C, num_layers=1, num_heads=2, rngs=nnx.Rngs(0)
    )


def make_tokens(rows=B):
    tokens = jnp.asarray(np.random.default_rng(0).integers(V, size=(rows, T + 1)), jnp.int32)
    return tokens[:, :-1], tokens[:, 1:]


def loss_and_gradients(model, tokens, targets, chunk_size, smoothing=0.0):
    """Weighted sum of the losses of all tokens, and its gradients; ``None`` for the plain loss."""
    graphdef, params = nnx.split(model)
    weight = jnp.arange(1.0, T + 1)

    @jax.value_and_grad
    def loss(params):
        model = nnx.merge(graphdef, params)
        h = model.backbone(tokens)
        if chunk_size is None:
            losses = smoothed_cross_entropy(model.read(h), targets, smoothing)
        else:
            losses = chunked_cross_entropy(
                model.read, h, targets, chunk_size=chunk_size, smoothing=smoothing
            )
        assert losses.shape == targets.shape
        return jnp.sum(weight * losses)

    return jax.jit(loss)(params)


@pytest.mark.parametrize(
    ("tied", "chunk_size", "smoothing"),
    [(True, 4, 0.0), (False, 5, 0.1), (True, 1, 0.0), (False, 100, 0.0)],
)
def test_chunks_give_the_loss_and_gradients_of_all_tokens(tied, chunk_size, smoothing):
    """Also where the last chunk is shorter, and where one chunk has all tokens."""
    model, batch = make_model(tied), make_tokens()
    plain = loss_and_gradients(model, *batch, None, smoothing)
    chunked = loss_and_gradients(model, *batch, chunk_size, smoothing)
    for a, b in zip(*map(jax.tree.leaves, (plain, chunked)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def test_no_array_has_the_logits_of_all_tokens():
    kernel, targets = jnp.ones((C, V)), make_tokens()[1]
    h = jnp.ones((B, T, C))

    def max_bytes(loss):
        return _max_array_bytes(jax.make_jaxpr(jax.grad(loss, (0, 1)))(h, kernel).jaxpr)

    plain = max_bytes(lambda h, k: smoothed_cross_entropy(h @ k, targets).sum())
    chunked = max_bytes(
        lambda h, k: chunked_cross_entropy(lambda h: h @ k, h, targets, chunk_size=2).sum()
    )
    assert plain == 4 * B * T * V and chunked == 4 * C * V  # the gradient of the kernel


def test_two_devices_give_the_loss_of_one():
    model, (tokens, targets) = make_model(True), make_tokens()
    sharding = NamedSharding(make_mesh(data=2), PartitionSpec("data"))
    split = [jax.device_put(x, sharding) for x in (tokens, targets)]
    one, two = (loss_and_gradients(model, *b, 4) for b in ((tokens, targets), split))
    for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
        ({"labels": jnp.zeros((B, T))}, TypeError, "labels must be class indices, .* got float32"),
        ({"labels": jnp.zeros(T, jnp.int32)}, ValueError, r"labels \[B, T\], got the shapes"),
        ({"smoothing": 2.0}, ValueError, "smoothing must be from 0 to 1"),
    ],
)
def test_bad_arguments_are_refused(changes, error, message):
    labels = jnp.zeros((B, T), jnp.int32)
    options = {"features": jnp.ones((B, T, C)), "labels": labels, "chunk_size": 4, **changes}
    with pytest.raises(error, match=message):
        chunked_cross_entropy(lambda h: h, **options)
