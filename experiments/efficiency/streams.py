"""Models as recurrent networks, timed token by token; a cache doubles when it is full."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.efficiency.programs import observations
from flax_linattn.bench import compile_program, spread
from flax_linattn.inference import state_bytes

ROUNDS = 8
"""In which the ends of all blocks are timed."""
STEPS = 16
"""Of each end in a round, at most."""


class Stream:
    """A backbone's compiled step and its state.

    The key/value cache of a mechanism that has one holds the next power of two of the tokens so
    far, as caches that grow do: one made for the longest stream would cost its whole length at
    every step.
    """

    def __init__(self, model: Any, batch: int) -> None:
        self._model = model
        self._graph, self._variables = nnx.split(model)
        self._x = observations(batch, *model.observation_shape)
        self._state: Any = None
        self._compiled: Any = None
        self.memory: dict[str, Any] = {}

    def reserve(self, capacity: int) -> None:
        """Makes room for ``capacity`` tokens; compiles the step if its state grew."""
        new = self._model.init_state(self._x.shape[0], max_length=capacity)
        same = jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, self._state)
        if self._state is not None and same:
            return
        if self._state is not None:
            new = jax.tree.map(_copy_into, new, self._state)
        self._state = new
        arguments = (self._variables, new, self._x)
        self._compiled, self.memory = compile_program(self._step, arguments, donate_argnums=1)
        # The first call of a program does more than the others.
        y, _ = self._compiled(self._variables, jax.tree.map(jnp.copy, new), self._x)
        jax.block_until_ready(y)

    def _step(self, variables: Any, state: Any, x: jax.Array) -> Any:
        return nnx.merge(self._graph, variables).step(x, state)

    def advance(self, steps: int) -> list[float]:
        """Runs steps; returns the milliseconds of each."""
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            y, self._state = self._compiled(self._variables, self._state, self._x)
            jax.block_until_ready(y)
            times.append(1e3 * (time.perf_counter() - begin))
        return times

    def copy(self) -> Stream:
        """A copy of the stream that continues independently."""
        other = copy.copy(self)
        other._state = jax.tree.map(jnp.copy, self._state)
        return other

    def facts(self) -> dict[str, Any]:
        """Bytes of the state, and of all that a step needs, weights included."""
        return {"state_bytes": state_bytes(self._state), "total_bytes": self.memory["total_bytes"]}


def _copy_into(new: jax.Array, old: jax.Array) -> jax.Array:
    if new.shape == old.shape:
        return old
    return jax.lax.dynamic_update_slice(new, old, (0,) * new.ndim)


def measure_streams(
    models: Mapping[str, Any], batch: int, tokens: int, first: int = 64
) -> dict[str, list[dict[str, Any]]]:
    """Times models over streams, in turns: first all blocks, then the ends of all blocks.

    What changes on a machine while a stream runs changes all ends alike, so that a late step can be
    compared with an early one.

    Args:
        models: by name.
        batch: rows.
        tokens: of the longest stream, a power of two.
        first: of the shortest, another one; at least ``ROUNDS``.

    Returns:
        For each model and each power of two from ``first`` to ``tokens``: the tokens so far, the
        cumulative ``seconds``, ``milliseconds`` of a step there (over the medians of ``ROUNDS``
        rounds), and ``facts``.
    """
    streams = {name: Stream(model, batch) for name, model in models.items()}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    total = dict.fromkeys(models, 0.0)
    ends: dict[tuple[str, int], tuple[Stream, int]] = {}
    done, length = 0, min(first, tokens)
    names = list(models)
    while done < tokens:
        for name in names:
            stream, last = streams[name], min(STEPS, (length - done) // ROUNDS)
            stream.reserve(length)
            times = stream.advance(length - done - ROUNDS * last)
            ends[name, length] = stream.copy(), last
            times += stream.advance(ROUNDS * last)
            total[name] += sum(times) / 1e3
            results[name].append({"tokens": length, "seconds": total[name], **stream.facts()})
        names = names[1:] + names[:1]
        done, length = length, min(2 * length, tokens)
    medians: dict[tuple[str, int], list[float]] = {end: [] for end in ends}
    for _ in range(ROUNDS):
        for end, (stream, last) in ends.items():
            medians[end].append(statistics.median(stream.advance(last)))
    for name, points in results.items():
        for facts in points:
            facts["milliseconds"] = spread(medians[name, facts["tokens"]])
    return results
