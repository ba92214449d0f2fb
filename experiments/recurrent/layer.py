"""Recurrent cells of Flax in place of the attention of a task's model.

Embedding, residuals, norms, feed-forward layers, dropout and head stay the same, and so do their
initial values, data, batches and training. Only the layer that mixes tokens differs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from flax_linattn import nn, tasks
from flax_linattn.nn.call import Call
from flax_linattn.typing import Array

CELLS: dict[str, Any] = {"LSTM": nnx.OptimizedLSTMCell, "GRU": nnx.GRUCell}
"""Flax's cells by name, as wide as the model, with Flax's own initial values."""


class RecurrentLayer(nnx.Module):
    """A cell that runs over sequences h [B, T, C], in place of a causal ``nn.Attention``.

    A masked token does not change the state, wherever it is, so padding changes nothing.
    """

    streams = True

    def __init__(self, cell: str, features: int, *, rngs: nnx.Rngs) -> None:
        self.cell = CELLS[cell](features, features, rngs=rngs)

    def init_state(self, batch_size: int, max_length: int | None = None, **options: Any) -> Any:
        """The state before the first token: zeros."""
        shape = (batch_size, self.cell.in_features)
        return self.cell.initialize_carry(shape, nnx.Rngs(0), nnx.initializers.zeros_init())

    def step(self, x: Array, state: Any, *, mask: Array | None = None, **options: Any) -> Any:
        """One token per sequence: x [B, C] -> y [B, C] and the new state."""
        after, y = self.cell(state, x)
        if mask is None:
            return y, after
        return y, jax.tree.map(lambda new, old: jnp.where(mask[:, None], new, old), after, state)

    def _map(self, x: Array, call: Call) -> Any:
        """Whole sequences, token by token, called as a block calls its attention."""
        before = self.init_state(len(x)) if call.state is None else call.state

        def step(state: Any, token: Any) -> Any:
            y, state = self.step(token[0], state, mask=token[1])
            return state, y

        mask = None if call.mask is None else call.mask.T
        after, y = jax.lax.scan(step, before, (jnp.swapaxes(x, 0, 1), mask))
        return jnp.swapaxes(y, 0, 1), after

    def _check_call(self, x: Array, call: Call) -> Call:
        if call.segment_ids is not None:
            raise ValueError("a recurrent layer takes one sequence per row, got segment_ids.")
        return call

    def _resolve_causal(self, is_causal: bool | None, context: Array | None) -> bool:
        if is_causal is False:
            raise ValueError("a recurrent layer is causal, got is_causal=False.")
        return True


def replace_attention(model: nnx.Module, cell: str, rngs: nnx.Rngs) -> None:
    """Replaces the self-attention of each block; attention from decoder to encoder stays."""
    for _, block in list(nnx.iter_modules(model)):
        if isinstance(block, (nn.TransformerBlock, nn.DecoderBlock)):
            features = block.attention.in_features
            block.attention = RecurrentLayer(cell, features, rngs=rngs)  # type: ignore[assignment]


def recurrent_task(name: str, cell: str) -> tasks.Task[Any, Any, Any]:
    """A task whose models have a cell of ``CELLS`` in place of self-attention.

    Its runs are trained and tested like any other, but load as runs with attention.
    """
    kind: Any = type(tasks.get_task(name))

    class RecurrentTask(kind):
        def model(self, config: Any, *arguments: Any, **options: Any) -> nnx.Module:
            model = super().model(config, *arguments, **options)
            replace_attention(model, cell, nnx.Rngs(config.seed))
            return model

    return RecurrentTask()
