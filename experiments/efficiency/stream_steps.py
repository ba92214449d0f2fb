"""Steps per second of a small model as a recurrent network, compared with a GRU cell and a cache.

    python -m experiments.efficiency.stream_steps

The model has one layer of 64 features on 16 channels, with embedding, feed-forward layer and norms.
The bare ``nnx.GRUCell`` of 64 features has none of these. It runs under jit in two versions: as
usually written, with nnx variables as an argument, and minimal, with a list of arrays and a donated
carry. A step is one call from Python that waits for its output, as for an observation that arrives
alone. ``unroll``, and ``lax.scan`` over the cell, process many observations in one program. All
programs of a row run in turns in one process, ``Stream.step`` twice, which shows the noise of the
machine.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.efficiency.programs import observations
from experiments.measured import Measured, Rows
from experiments.rules import Range
from experiments.statements import Statement
from flax_linattn import inference, models, ops
from flax_linattn.bench import Journal, compile_program, spread
from flax_linattn.bench.report import markdown, number
from flax_linattn.models.backbone import BackboneState

CHANNELS = 16
STREAM, AGAIN, PROGRAM, UNROLL = "Stream.step", "the same again", "its program", "unroll"
CELL, CELL_PROGRAM, CELL_SCAN = "GRU cell", "minimal GRU cell", "GRU cell by scan"
CACHE = "softmax"
MECHANISMS = tuple(
    name for name in ops.list_mechanisms() if ops.get_mechanism(name).capabilities.constant_memory
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: whose states have a constant size.
        held: tokens in softmax's cache.
        rows: B.
        features: of the layer and the cell.
        num_heads: of the layer.
        work: about how many rows are taken in for one timing.
        rounds: how often each program is timed.
        seconds: no further round of a row begins after so long, once there are three.
        max_state_bytes: a greater state is not run; a sixth of it only by ``Stream.step``.
    """

    mechanisms: tuple[str, ...] = MECHANISMS
    held: tuple[int, ...] = (1000, 16_000)
    rows: tuple[int, ...] = (1, 16, 256, 4096)
    features: int = 64
    num_heads: int = 4
    work: int = 8192
    rounds: int = 9
    seconds: float = 3.0
    max_state_bytes: float = 3e9


class Turn(NamedTuple):
    """A program to time in turns.

    Attributes:
        begin: what is done before, untimed.
        run: takes in ``steps`` observations of all rows, and waits for them.
        steps: how many.
    """

    begin: Callable[[], None]
    run: Callable[[], None]
    steps: int


def measure(size: Size, journal: Journal) -> None:
    cases = [(name, 0) for name in size.mechanisms] + [(CACHE, held) for held in size.held]
    for mechanism, held in cases:
        for rows in size.rows:
            key = {"mechanism": mechanism, "held": held, "rows": rows}
            journal.row(key, partial(measure_rows, size, mechanism, held, rows))


def measure_rows(size: Size, mechanism: str, held: int, rows: int) -> dict[str, Any]:
    """Milliseconds of a step by program, and bytes of the state."""
    model = models.Backbone(
        CHANNELS,
        size.features,
        num_layers=1,
        num_heads=size.num_heads,
        hidden_features=4 * size.features,
        mechanism=mechanism,
        rngs=nnx.Rngs(0),
    )
    steps = max(2, min(256, size.work // rows))
    capacity = None
    if held:  # few, so that all find about as many tokens
        steps = max(2, min(steps, 16, 1_000_000 // (held * rows)))
        capacity = held + steps + 1
    made = jax.eval_shape(lambda: model.init_state(rows, max_length=capacity))
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made))
    facts = {"state_bytes": state_bytes}
    if state_bytes > size.max_state_bytes:
        return facts | {"not_run": f"a state of {state_bytes / 1e9:.1f} GB"}

    programs: dict[str, Turn] = {}
    if state_bytes <= size.max_state_bytes / 6:
        programs[PROGRAM] = by_program(model, rows, held, capacity, steps)
    programs[STREAM] = programs[AGAIN] = by_stream(model, rows, held, capacity, steps)
    programs[CELL] = by_cell(size.features, rows, steps)
    programs[CELL_PROGRAM] = by_cell_program(size.features, rows, steps)
    if not held:
        tokens = max(4, min(4096, 2 * size.work // rows))
        programs[UNROLL] = by_unroll(model, rows, tokens)
        programs[CELL_SCAN] = by_cell_scan(size.features, rows, tokens)
    return facts | {"milliseconds": in_turns(programs, size.rounds, size.seconds)}


def in_turns(programs: Mapping[str, Turn], rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step, of all programs in turns."""
    for turn in programs.values():  # compiled, and warm
        turn.begin()
        turn.run()
    times: dict[str, list[float]] = {name: [] for name in programs}
    names, started = list(programs), time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - started > seconds:
            break
        for name in names:
            turn = programs[name]
            turn.begin()
            begin = time.perf_counter()
            turn.run()
            times[name].append(1e3 * (time.perf_counter() - begin) / turn.steps)
        names = names[1:] + names[:1]
    return {name: spread(values) for name, values in times.items()}


def holding(state: Any, held: int) -> Any:
    """The state of a backbone whose caches hold ``held`` tokens, all zeros."""
    if not held:
        return state

    def full(length: Any) -> Any:
        return jnp.full_like(length, held)

    layers = (dataclasses.replace(cache, length=full(cache.length)) for cache in state.layers)
    return BackboneState(full(state.position), state.window, tuple(layers))


def by_stream(model: Any, rows: int, held: int, capacity: int | None, steps: int) -> Turn:
    """Times ``Stream.step``, called from Python."""
    stream = inference.Stream(model, batch_size=rows, max_length=capacity)
    x = observations(rows, CHANNELS)
    start = holding(model.init_state(rows, capacity), held) if held else None

    def begin() -> None:
        if start is not None:
            stream.state = start
            stream.step(x).block_until_ready()

    def run() -> None:
        for _ in range(steps):
            stream.step(x).block_until_ready()

    return Turn(begin, run, steps)


def by_program(model: Any, rows: int, held: int, capacity: int | None, steps: int) -> Turn:
    """The compiled program alone, whose arguments and results are lists of arrays."""
    variables, rebuild = flat(model)
    start, tree = jax.tree.flatten(holding(model.init_state(rows, capacity), held))
    x = observations(rows, CHANNELS)

    def step(variables: Any, state: Any, x: jax.Array) -> Any:
        y, after = rebuild(variables).step(x, jax.tree.unflatten(tree, state))
        return y, jax.tree.leaves(after)

    compiled, _ = compile_program(step, (variables, start, x), donate_argnums=1)
    state: Any = None

    def begin() -> None:
        nonlocal state
        copied = [jnp.copy(leaf) for leaf in start]
        y, state = compiled(variables, copied, x)
        y.block_until_ready()

    def run() -> None:
        nonlocal state
        for _ in range(steps):
            y, state = compiled(variables, state, x)
            y.block_until_ready()

    return Turn(begin, run, steps)


def flat(module: Any) -> tuple[list[jax.Array], Callable[[Any], Any]]:
    """A module's arrays, and what makes it of them."""
    graph, variables = nnx.split(module)
    leaves, tree = jax.tree.flatten(variables)
    return leaves, lambda leaves: nnx.merge(graph, jax.tree.unflatten(tree, leaves))


def by_cell(features: int, rows: int, steps: int) -> Turn:
    """A bare cell under jit, as one writes it."""
    graph, variables = nnx.split(nnx.GRUCell(features, features, rngs=nnx.Rngs(0)))

    @jax.jit
    def step(variables: Any, carry: jax.Array, x: jax.Array) -> Any:
        return nnx.merge(graph, variables)(carry, x)

    x, carry = observations(rows, features), jnp.zeros((rows, features))

    def run() -> None:
        nonlocal carry
        for _ in range(steps):
            carry, y = step(variables, carry, x)
            y.block_until_ready()

    return Turn(_no_op, run, steps)


def by_cell_program(features: int, rows: int, steps: int) -> Turn:
    """The same, its arrays in a list and its carry, which is its output, donated."""
    variables, rebuild = flat(nnx.GRUCell(features, features, rngs=nnx.Rngs(0)))
    x = observations(rows, features)

    @partial(jax.jit, donate_argnums=1)
    def step(variables: Any, carry: jax.Array, x: jax.Array) -> jax.Array:
        return rebuild(variables)(carry, x)[0]

    carry = jnp.zeros((rows, features))

    def run() -> None:
        nonlocal carry
        for _ in range(steps):
            carry = step(variables, carry, x)
            carry.block_until_ready()

    return Turn(_no_op, run, steps)


def by_unroll(model: Any, rows: int, tokens: int) -> Turn:
    """``unroll`` from the first observation on."""
    x = observations(rows, tokens, CHANNELS)
    return Turn(_no_op, lambda: inference.unroll(model, x).block_until_ready(), tokens)


def by_cell_scan(features: int, rows: int, tokens: int) -> Turn:
    """Times the cell under ``lax.scan``."""
    variables, rebuild = flat(nnx.GRUCell(features, features, rngs=nnx.Rngs(0)))
    x = observations(tokens, rows, features)

    @jax.jit
    def loop(variables: Any, x: jax.Array) -> jax.Array:
        cell, carry = rebuild(variables), jnp.zeros((rows, features))
        return jax.lax.scan(cell, carry, x)[1]

    return Turn(_no_op, lambda: loop(variables, x).block_until_ready(), tokens)


def _no_op() -> None:
    pass


def table(rows: Rows, size: Size) -> str:
    heads = ["mechanism", "sequences", "µs per step (min - max)", "steps/s", "µs above its program"]
    heads += ["relative to the GRU cell", "relative to its minimum", "repeat"]
    heads += ["unroll: steps/s", "relative to the cell by scan"]
    lines = []
    for row in rows:
        line = [_name(row), f"{row['rows']:,}"]
        if "not_run" in row:
            lines.append([*line, row["not_run"], *["-"] * (len(heads) - 3)])
            continue
        took = {name: Range.of(value) for name, value in row["milliseconds"].items()}
        step = took[STREAM]
        line += [f"{_micros(step.middle)} ({_micros(step.low)} - {_micros(step.high)})"]
        line += [number(1e3 / step.middle)]
        own = took.get(PROGRAM)
        line += ["-" if own is None else _micros(step.middle - own.middle)]
        line += [step.over(took[name]).text() for name in (CELL, CELL_PROGRAM)]
        line += [took[AGAIN].over(step).text()]
        if UNROLL in took:
            line += [number(1e3 / took[UNROLL].middle)]
            line += [took[UNROLL].over(took[CELL_SCAN]).text()]
        else:
            line += ["-", "-"]
        lines.append(line)
    return f"{markdown(heads, lines)}\n\n{costs(rows)}"


def costs(rows: Rows) -> str:
    """What a step costs at all, and what each further row adds, between the two greatest counts."""
    heads = ["mechanism", "kB of state per sequence", "µs of one", "µs per further one"]
    lines = []
    for name in dict.fromkeys(map(_name, rows)):
        of_name = [row for row in rows if _name(row) == name and "not_run" not in row]
        if not of_name:
            continue
        first, last = of_name[0], of_name[-1]
        before = of_name[max(0, len(of_name) - 2)]
        line = [name, number(first["state_bytes"] / first["rows"] / 1e3)]
        line += [_micros(_median(first) / first["rows"])]
        more = last["rows"] - before["rows"]
        line += [_micros((_median(last) - _median(before)) / more) if more else "-"]
        lines.append(line)
    return markdown(heads, lines)


def _median(row: Any) -> float:
    return float(row["milliseconds"][STREAM]["median"])


def _name(row: Any) -> str:
    return f"{row['mechanism']}, {row['held']:,} tokens" if row["held"] else str(row["mechanism"])


def _micros(milliseconds: float) -> str:
    return number(1e3 * milliseconds)


EXPERIMENT = Measured(
    module="experiments.efficiency.stream_steps",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(
            "Element-wise attention, section 3.4",
            "the inference cost of EA-series approaches that of RNNs",
            why="no row compares steps of attention and of a GRU in the same block: ours are steps "
            "of a whole model, the GRU steps are of a bare cell",
        ),
    ),
    left_out={
        "cpu": "an accelerator; unroll with a cache; caches of more than 3 GB, and of more than "
        "0.5 GB their program alone"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
