"""Models as a Flax user writes them, with nnx's own layers: attention, recurrent cells, S5.

All have the embedding of Time-Series-Library, a convolution over the values plus sinusoids.
Classifiers also have its head: weights for each position after a GELU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

DROPOUT = 0.1
Batch = dict[str, jax.Array]
Mixer = Callable[..., nnx.Module]
"""(features, num_heads, rngs) -> a layer that maps h [B, T, C] along time."""


class Encoder(nnx.Module):
    """Embedding and layers: x [B, T, channels] -> h [B, T, C].

    Args:
        channels: of an observation.
        length: T of every sequence.
        features: C.
        layers: modules that map h [B, T, C].
        rngs: holds the streams "params" and "dropout".
    """

    def __init__(
        self,
        channels: int,
        length: int,
        features: int,
        layers: list[nnx.Module],
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.embedding = nnx.Conv(
            channels, features, kernel_size=(3,), padding="CIRCULAR", use_bias=False, rngs=rngs
        )
        self.positions = nnx.Variable(jnp.asarray(sinusoids(length, features)))
        self.layers = nnx.List(layers)
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.dropout(self.embedding(x) + self.positions[...])
        for layer in self.layers:
            h = layer(h)
        return h


class Classifier(nnx.Module):
    """A linear layer on all positions of an encoder; it leaves out padding."""

    def __init__(self, encoder: Encoder, classes: int, *, rngs: nnx.Rngs) -> None:
        self.encoder = encoder
        self.head = nnx.Linear(encoder.positions[...].size, classes, rngs=rngs)
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)

    def loss(self, batch: Batch) -> jax.Array:
        """Cross-entropy of values [B, T, channels] with a mask [B, T], and labels [B]."""
        h = jax.nn.gelu(self.encoder(batch["values"]), approximate=False)
        h = self.dropout(h) * batch["mask"][..., None]
        logits = self.head(h.reshape(h.shape[0], -1))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()


class Forecaster(nnx.Module):
    """All rows of a horizon by a linear layer on the last position of an encoder."""

    def __init__(self, encoder: Encoder, horizon: int, *, rngs: nnx.Rngs) -> None:
        self.encoder, self.horizon = encoder, horizon
        channels = encoder.embedding.in_features
        self.head = nnx.Linear(encoder.embedding.out_features, horizon * channels, rngs=rngs)

    def loss(self, batch: Batch) -> jax.Array:
        """Mean square error on windows with the rows that follow, values [B, T + H, channels]."""
        values = batch["values"]
        future = values[:, -self.horizon :]
        forecasts = self.head(self.encoder(values[:, : -self.horizon])[:, -1])
        return jnp.mean(jnp.square(forecasts.reshape(future.shape) - future))


class Block(nnx.Module):
    """A layer along time and one across features, each with a residual and a norm behind it."""

    def __init__(
        self, features: int, hidden: int, num_heads: int, mixer: Mixer, *, rngs: nnx.Rngs
    ) -> None:
        self.mixer = mixer(features, num_heads, rngs)
        self.expand = nnx.Linear(features, hidden, rngs=rngs)
        self.contract = nnx.Linear(hidden, features, rngs=rngs)
        self.mixer_norm = nnx.LayerNorm(features, rngs=rngs)
        self.norm = nnx.LayerNorm(features, rngs=rngs)
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)

    def __call__(self, h: jax.Array) -> jax.Array:
        h = self.mixer_norm(h + self.dropout(self.mixer(h)))
        y = self.dropout(jax.nn.gelu(self.expand(h), approximate=False))
        return self.norm(h + self.dropout(self.contract(y)))


class Attention(nnx.Module):
    """``nnx.MultiHeadAttention`` to itself and the past."""

    def __init__(self, features: int, num_heads: int, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(num_heads, features, decode=False, rngs=rngs)

    def __call__(self, h: jax.Array) -> jax.Array:
        return self.attention(h, is_causal=True)


class S5(nnx.Module):
    """A diagonal state-space layer (Smith et al., 2023), by an associative scan.

    x_t = exp(a dt) x_t-1 + (exp(a dt) - 1) / a B u_t, y_t = 2 Re(C x_t) + D u_t, with as many
    complex states as features, so that it has the parameters of an attention layer; a starts as
    S4D-Lin's.
    """

    def __init__(self, features: int, num_heads: int, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.variance_scaling(0.5, "fan_in", "normal")
        shape = (features, features)
        self.into = nnx.List(nnx.Param(init(rngs.params(), shape)) for _ in range(2))
        self.out = nnx.List(nnx.Param(init(rngs.params(), shape)) for _ in range(2))
        self.decay = nnx.Param(jnp.full(features, jnp.log(0.5)))
        self.frequency = nnx.Param(jnp.pi * jnp.arange(features, dtype=jnp.float32))
        low, high = jnp.log(1e-3), jnp.log(1e-1)
        self.log_step = nnx.Param(
            jax.random.uniform(rngs.params(), (features,)) * (high - low) + low
        )
        self.skip = nnx.Param(jnp.ones(features))

    def __call__(self, u: jax.Array) -> jax.Array:
        a = jax.lax.complex(-jnp.exp(self.decay[...]), self.frequency[...])
        factor = jnp.exp(a * jnp.exp(self.log_step[...]))
        real, imaginary = (u @ weights[...] for weights in self.into)
        inputs = jax.lax.complex(real, imaginary) * ((factor - 1) / a)

        def merge(earlier: Any, later: Any) -> Any:
            return earlier[0] * later[0], later[0] * earlier[1] + later[1]

        factors = jnp.broadcast_to(factor, inputs.shape)
        states = jax.lax.associative_scan(merge, (factors, inputs), axis=1)[1]
        real, imaginary = (weights[...] for weights in self.out)
        return 2 * (states.real @ real - states.imag @ imaginary) + self.skip[...] * u


class Recurrent(nnx.Module):
    """A recurrent network, with dropout behind it."""

    def __init__(self, cell: Any, features: int, rngs: nnx.Rngs) -> None:
        self.network = nnx.RNN(cell(features, features, rngs=rngs))
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)

    def __call__(self, h: jax.Array) -> jax.Array:
        return self.dropout(self.network(h))


def sinusoids(length: int, features: int) -> np.ndarray:
    """Positions [T, C] of Vaswani et al.: even channels sine, odd cosine."""
    pairs = np.arange(0, features, 2)
    angle = np.arange(length)[:, None] * 10_000.0 ** (-pairs / features)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, -1).astype(np.float32)


def training_step() -> Any:
    """``step(model, optimizer, batch) -> loss``, compiled for each model that uses it."""

    @nnx.jit
    def step(model: nnx.Module, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda model: model.loss(batch))(model)
        optimizer.update(model, grads)
        return loss

    return step
