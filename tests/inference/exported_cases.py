"""Models that every export to another language is compared with."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.inference.cases import CHANNELS

QUICK = ("aaren", "gated_delta", "minirocket")
CONSTANT = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in (
        *QUICK, "elementwise_series", "taylorshift", "expressive_quadratic", "forgetting_aaren",
        "gated_linear", "retention", "rwkv", "linear", "aft_simple", "taylor_features",
        "performer", "rfa", "softmax:window=4", "softmax:window=4,sinks=2",
    )
]  # fmt: skip
"""Every mechanism whose state has constant size, and features whose loops are unrolled."""


def observations(length: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(length, CHANNELS)).astype(np.float32)


_LANGUAGE = {
    "gates, a convolution and RMS norms": {
        "mechanism": "gated_delta", "short_conv": 4, "output_norm": "rms", "norm": "pre",
        "norm_type": "rms", "activation": "swiglu", "hidden_features": 24, "use_bias": False,
    },
    "rotary positions": {"mechanism": "retention", "rotary": True},
    "learned positions": {"mechanism": "aaren", "position": "learned", "max_length": 60},
    "grouped queries": {"mechanism": "taylorshift", "num_kv_heads": 2, "normalize_qk": "rms"},
}  # fmt: skip
LANGUAGE = [
    pytest.param(options, id=name, marks=() if "gates" in name else pytest.mark.slow)
    for name, options in _LANGUAGE.items()
]
"""Options of language models."""


def language_model(options: Any) -> models.LanguageModel:
    model = models.LanguageModel(31, features=16, num_layers=2, num_heads=4, rngs=nnx.Rngs(0),
                                 **options)  # fmt: skip
    model.eval()
    return model


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 31, 50, np.int32)


class Step(nnx.Module):
    """A model of one function, which need not be called on sequences."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, x: Any, **_: Any) -> Any:
        raise NotImplementedError

    def init_state(self, batch_size: int, max_length: Any = None, *, dtype: Any = None) -> Any:
        zeros = jnp.zeros((batch_size, CHANNELS))
        return {"float": zeros, "0": zeros + 1, "empty": zeros[:, :0]}

    def step(self, x: Any, state: Any, *, mask: Any = None) -> Any:
        new = {"float": state["0"], "0": state["float"] + x, "empty": 2 * state["empty"]}
        return self.function(x, state["float"]), new


FUNCTIONS = {
    "broadcast": lambda x, s: (x - x.mean(-1, keepdims=True)) / (1 + jnp.abs(s)),
    "layout": lambda x, s: jnp.concatenate([x[:, ::-1], s[:, 1:], jnp.pad(x, ((0, 0), (2, 1)))], 1),
    "reductions": lambda x, s: jnp.stack([x.max(1), s.min(1), (x * s).sum(1), x.prod(1)], 1),
    "cumulative": lambda x, s: jnp.cumsum(x, 1) + jnp.cumsum(s[:, ::-1], 1)[:, ::-1],
    "products": lambda x, s: jnp.einsum("bi,bj,jk->bik", x, s, jnp.eye(3, 2) + 1).reshape(1, -1),
    "numbers": lambda x, s: jnp.where(jnp.isfinite(x / s), jnp.sign(x) * jnp.round(3 * x), s**3),
    "lookup": lambda x, s: jnp.arange(10.0)[jnp.clip(jnp.floor(9 * x), 0, 9).astype(jnp.int32)],
    "NaN is last": lambda x, s: jnp.sort(jnp.concatenate([jnp.log(x), -x, jnp.sqrt(s)], 1)),
    "cases": lambda x, s: jax.lax.select_n(jnp.where(x > 1, 1, jnp.arange(3)), x, 2 * x, s),
    "counters": lambda x, s: (jnp.where(x > 0, 2**31 - 1, 7) + jnp.arange(3)).astype(jnp.float32),
    "order": lambda x, s: jnp.sort(x + s) - jnp.take_along_axis(x, jnp.array([[2, 0, 2]]), 1),
    "empty arrays": lambda x, s: jnp.concatenate(
        [jnp.broadcast_to(x[:, None, :0], (1, 2, 0)).reshape(1, 0), s, x[:, :0]], 1
    ),
    "integers": lambda x, s: ((x * 100).astype(jnp.int32) % 7 + jnp.arange(3)).astype(jnp.float32),
}
"""Operations of a step."""


def stepped(model: Step, x: np.ndarray) -> np.ndarray:
    """Outputs of a model for each row, by its own steps."""
    state, outputs = model.init_state(1), []
    for row in x:
        y, state = model.step(jnp.asarray(row[None]), state)
        outputs.append(np.asarray(y)[0])
    return np.asarray(outputs)
