"""Summary of a model: parameters, state size, and operations of a step."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
from flax import nnx

from flax_linattn.inference.model import StreamingModel
from flax_linattn.inference.state import state_bytes
from flax_linattn.typing import Array


class Summary(NamedTuple):
    """Summary of a model; its string is a table.

    Attributes:
        parameters: Number of parameters of each part of the model, by name.
        state_bytes: Size of the state of one row in bytes; None if the model does not stream.
        step_flops: Floating-point operations of one step of one row, counted by XLA before
            compilation; None if the model does not stream.
    """

    parameters: dict[str, int]
    state_bytes: int | None
    step_flops: float | None

    def __str__(self) -> str:
        rows = [*self.parameters.items(), ("all parameters", sum(self.parameters.values()))]
        if self.state_bytes is not None:
            rows.append(("state of a sequence, bytes", self.state_bytes))
        if self.step_flops is not None:
            rows.append(("a step of a sequence, FLOPs", int(self.step_flops)))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value:>14,}" for name, value in rows)


def summarize(
    model: nnx.Module, x: Array | jax.ShapeDtypeStruct, max_length: int | None = None
) -> Summary:
    """Counts a model's parameters, the bytes of its state and the operations of a step.

    Args:
        model: Any module; a :class:`StreamingModel` has a state.
        x: An observation, [1, ...], or its ``jax.ShapeDtypeStruct``.
        max_length: Maximum number of observations, the size of a cache; default an empty cache.

    Example:
        >>> import jax
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.Backbone(3, 16, num_layers=2, num_heads=4, rngs=nnx.Rngs(0))
        >>> summary = inference.summarize(model, jax.ShapeDtypeStruct((1, 3), "float32"))
        >>> sum(summary.parameters.values()), summary.state_bytes
        (6768, 220)
    """
    parameters: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.state(model, nnx.Param)):
        name = jax.tree_util.keystr(path[:1], simple=True)
        parameters[name] = parameters.get(name, 0) + leaf.size
    if not isinstance(model, StreamingModel):
        return Summary(parameters, None, None)
    try:
        state = model.init_state(1, max_length)
    except ValueError:  # the model is not causal
        return Summary(parameters, None, None)
    graphdef, variables = nnx.split(model)

    def step(variables: Any, x: Array, state: Any) -> Any:
        return cast(StreamingModel, nnx.merge(graphdef, variables)).step(x, state)

    observation = jax.ShapeDtypeStruct(x.shape, x.dtype)
    costs: Any = jax.jit(step).lower(variables, observation, state).cost_analysis()
    return Summary(parameters, state_bytes(state), (costs or {}).get("flops"))
