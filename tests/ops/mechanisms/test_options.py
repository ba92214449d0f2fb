"""Bad hyperparameters and arguments of single mechanisms."""

import jax.numpy as jnp
import pytest

from flax_linattn import ops
from tests.ops.mechanisms.tokens import qkv


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("performer:num_features=0", "num_features must be at least 1, got 0"),
        ("rfa:num_features=0", "num_features must be at least 1, got 0"),
        ("linformer:num_projections=0", "num_projections must be at least 1, got 0"),
        ("linformer:max_length=0", "max_length must be at least 1, got 0"),
        ("aft:max_length=0", "max_length must be at least 1, got 0"),
        ("linformer:seed=-1", "seed must be at least 0, got -1"),
        ("performer:seed=-1", "seed must be at least 0, got -1"),
        ("rfa:seed=-1", "seed must be at least 0, got -1"),
        ("rfa:seed=1,seed=2", "name=value,name=value after the colon, each once"),
        ("rfa:**x", "name=value,name=value after the colon, each once"),
        ("nystrom:num_landmarks=0", "num_landmarks must be at least 1, got 0"),
        ("nystrom:iterations=0", "iterations must be at least 1, got 0"),
    ],
)
def test_bad_hyperparameters(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.get_mechanism(spec)


def test_bad_arguments() -> None:
    q, k, v = qkv(3)
    with pytest.raises(ValueError, match=r"scale must be positive.* got -1\.0"):
        ops.get_mechanism("performer", scale=-1.0).attend(q, k, v)
    with pytest.raises(ValueError, match=r"\[num_features, K\] = \(16, 8\), got \(3, 8\)"):
        ops.get_mechanism("performer").attend(q, k, v, projection=jnp.ones((3, 8)))
    with pytest.raises(ValueError, match=r"\[H, K\] = \(2, 8\), got \(8,\)"):
        ops.get_mechanism("rfa").attend(q, k, v, feature_scale=jnp.ones(8))
    with pytest.raises(ValueError, match=r"have one shape \[N, P\], got \(8,\) and None"):
        ops.get_mechanism("linformer").attend(q, k, v, key_projection=jnp.ones(8))
