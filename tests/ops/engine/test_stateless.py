"""Mechanisms of whole sequences: what they refuse, and padding."""

import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine.stateless import Sequences
from tests.ops.mechanisms.tokens import jitted, qkv


@pytest.mark.parametrize("name", ["linformer", "nystrom", "reformer", "eva"])
def test_whole_sequence_mechanisms_refuse_what_they_cannot(name: str) -> None:
    mechanism = ops.get_mechanism(name)
    q, k, v = qkv(6)
    with pytest.raises(ValueError, match=f"'{name}' has no causal form; use is_causal=False"):
        mechanism.attend(q, k, v, is_causal=True)
    with pytest.raises(ValueError, match=f"'{name}' does not support segment_ids"):
        mechanism.attend(q, k, v, segment_ids=jnp.zeros((2, 6), jnp.int32))
    no_state_message = f"'{name}' needs the whole sequence at once: it has no state and no step"
    with pytest.raises(ValueError, match=no_state_message):
        mechanism.attend(q, k, v, return_state=True)
    with pytest.raises(ValueError, match=no_state_message):
        mechanism.init_state(2, 2, 8, 8)
    with pytest.raises(ValueError, match=no_state_message):
        mechanism.step(q[:, 0], k[:, 0], v[:, 0], None)
    with pytest.raises(ValueError, match=no_state_message):
        mechanism.merge(None, None)


@pytest.mark.parametrize("name", ["linformer", "nystrom", "reformer", "eva"])
def test_padding_may_stand_anywhere(name: str) -> None:
    """Positions and segments count real tokens: the same outputs as without padding."""
    told = {
        "linformer": ":max_length=12",
        "reformer": ":bucket_size=2,num_hashes=2",
        "eva": ":window_size=2,num_chunks=3",
    }
    attend = jitted(name + told.get(name, ""))
    tokens = np.stack(qkv(9))
    mask = np.array([True, False, True, True, False, True, True, True, False, True, True, True])
    spread = np.full((3, 2, 12, 2, 8), np.nan, np.float32)
    spread[:, :, mask] = tokens
    got = attend(*spread, mask=np.stack([mask, mask]))
    np.testing.assert_allclose(got[:, mask], attend(*tokens), atol=1e-5)


def test_sequences_have_names_and_no_order() -> None:
    """Fields may be added: nobody can have unpacked them."""
    x = jnp.ones((1, 2, 1, 3))
    whole = Sequences(x, x, x, x[..., 0] > 0, x[..., 0] > 0, None, "auto", {})
    with pytest.raises(TypeError, match="not iterable"):
        tuple(whole)  # type: ignore[arg-type]
