"""Cross-channel attention at one time step."""

from __future__ import annotations

import dataclasses
from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from flax_linattn import nn, ops
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.models.layers import Layers, sized
from flax_linattn.nn.meshes import automatic
from flax_linattn.typing import Array


def check_channel_mechanism(name: str) -> ops.Mechanism:
    """Returns the mechanism of this name, or raises if it has no non-causal form."""
    try:
        mechanism = nn.resolve_mechanism(name)
    except (TypeError, ValueError) as error:
        message, names = str(error), ops.list_mechanisms()
        if (unknown := name.partition(":")[0]) not in names:
            choices = [each for each in names if ops.get_mechanism(each).capabilities.noncausal]
            message = (
                f"channel_mechanism must be a non-causal mechanism, one of {', '.join(choices)}, "
                f"got {unknown!r}."
            )
        raise OptionError(message, "channel_mechanism") from None
    if not mechanism.capabilities.noncausal:
        raise OptionError(
            f"channel_mechanism must be non-causal, since channels have no order, but {name!r} is "
            "causal only; choose another mechanism, such as softmax.",
            "channel_mechanism",
        )
    return mechanism


class ChannelMixing(nnx.Module):
    """Transformer block across channels, whose tokens are the channels of one time step.

    The features of a channel may then depend on all others, as in iTransformer (Liu et al.,
    "Inverted Transformers Are Effective for Time Series Forecasting", 2024, section 3.2), while
    time steps stay independent: a stream needs no state for it. Departure: a learned vector of each
    channel is added to its features, to distinguish the channels.

    Args:
        num_channels: Number of channels C.
        layers: Options of the block; its mechanism, and options that need tokens in an order
            (``rotary``, ``short_conv``, ``position_bias``), are not used.
        mechanism: Name of the mechanism.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **parameters: Dtype and initializers of the parameters; see ``nn.ParameterOptions``.

    Attributes:
        mechanism: Name of the mechanism.

    Raises:
        ValueError: If the mechanism is unknown, or has no non-causal form.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> layers = models.Layers(features=16, num_heads=4)
        >>> mixing = ChannelMixing(3, layers, "softmax", rngs=nnx.Rngs(0))
        >>> mixing(jnp.ones((2, 5, 3, 16))).shape
        (2, 5, 3, 16)
    """

    def __init__(
        self,
        num_channels: int,
        layers: Layers,
        mechanism: str,
        *,
        rngs: nnx.Rngs,
        **parameters: Unpack[nn.ParameterOptions],
    ) -> None:
        check_integers(1, num_channels=num_channels)
        resolved = check_channel_mechanism(mechanism)
        self.mechanism = mechanism
        param_dtype = parameters.get("param_dtype", jnp.float32)
        self.channels = nnx.Param(
            nnx.initializers.normal(0.02)(
                rngs.params(), (num_channels, layers.features), param_dtype
            )
        )
        try:
            resolved = sized(resolved, num_channels)
            layers = dataclasses.replace(layers.without_order(), mechanism=resolved)
        except ValueError as error:
            raise OptionError(str(error), "channel_mechanism") from None
        self.block = layers.block(resolved, rngs, **parameters)

    @automatic(3)
    def __call__(
        self, h: Float[Array, "... C F"], *, dropout_key: Array | None = None
    ) -> Float[Array, "... C F"]:
        """Mixes the features of all channels; ``dropout_key`` enables dropout."""
        x = (h + self.channels[...].astype(h.dtype)).reshape(-1, *h.shape[-2:])
        y: Any = self.block(x, dropout_key=dropout_key)
        return y.reshape(h.shape)
