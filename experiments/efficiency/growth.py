"""Growth of time and memory with the length of a sequence, for every mechanism.

    python -m experiments.efficiency.growth

One sequence, causal if the mechanism can be, forward and with gradients. At each length all
mechanisms run in turns in one process, with softmax attention as XLA compiles it. ``linear`` runs
twice, which shows the noise of the machine. A mechanism stops at the first length at which a run
would exceed the time budget (extrapolated from the previous two lengths) or its compiled program
the memory budget. Steps are timed from its states after few and after many tokens. Times are CPU
times of this process on one core, which exclude other processes.

An exponent is the slope of log time over log length in the upper half of the lengths, by least
squares with each repeat as a data point. Memory is counted, so its exponent has no interval.
Repeats at one length share the load of the machine at that time, so the interval describes this run
only.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy import stats

from experiments import rules
from experiments.efficiency.cache import make_step
from experiments.efficiency.crossing import where
from experiments.efficiency.programs import in_turns
from experiments.intervals import Interval
from experiments.measured import Measured, Rows
from experiments.rules import POWER, Range, more, within
from experiments.statements import Judge, Statement
from experiments.verdicts import FAILS, HOLDS, OPEN, Verdict
from flax_linattn import ops
from flax_linattn.bench import Journal, baselines, compile_program, inputs, spread
from flax_linattn.bench.comparison import FORWARD, PASSES, TRAINING
from flax_linattn.bench.plots import import_figure, plot_lines
from flax_linattn.bench.report import markdown, number
from flax_linattn.typing import Array

STEP = "step"
CACHES, CONSTANT, WHOLE = "key/value cache", "constant memory", "whole sequences only"
SOFTMAX = {True: "softmax", False: "softmax, not causal"}
XLA = {True: "softmax by XLA", False: "softmax by XLA, not causal"}
TWICE, AGAIN = "linear", "linear again"
HUES = ["blue", "orange", "green", "red", "purple", "brown", "pink", "gray", "olive", "cyan"]
COLORS = ["black", *(f"tab:{hue}" for hue in 2 * HUES)]
STYLES = ["-"] * (1 + len(HUES)) + ["--"] * len(HUES)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        mechanisms: their names.
        lengths: T, each the same multiple of the one before.
        held: tokens that a state has taken in before a step: few and many.
        num_heads: H.
        dim: K and V.
        rounds: how often each program is timed.
        seconds: no further round of a length begins after so long, once there are three.
        run_seconds: a run that would take longer is left out.
        run_bytes: a program that needs more, arguments and results included, is left out.
        steps: that are timed at once.
    """

    mechanisms: tuple[str, ...] = ops.list_mechanisms()
    lengths: tuple[int, ...] = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
    held: tuple[int, int] = (1000, 100_000)
    num_heads: int = 2
    dim: int = 32
    rounds: int = 5
    seconds: float = 12.0
    run_seconds: float = 2.0
    run_bytes: float = 5e9
    steps: int = 20


def kind(name: str) -> str:
    """What a mechanism keeps of the past."""
    capabilities = ops.get_mechanism(name).capabilities
    if capabilities.constant_memory:
        return CONSTANT
    return CACHES if capabilities.recurrent else WHOLE


def expected_power(name: str) -> int:
    """The power of the length that time grows with; memory grows with the first at most."""
    return 2 if kind(name) == CACHES else 1


def measure(size: Size, journal: Journal) -> None:
    for which in PASSES:
        before: list[Mapping[str, Any]] = []
        for length in size.lengths:
            key = {"pass": which, "length": length}
            row = journal.row(key, partial(sequences, size, which, length, before[-2:]))
            before.append(row["results"])
    for name in size.mechanisms:
        if ops.get_mechanism(name).capabilities.recurrent:
            journal.row({"pass": STEP, "mechanism": name}, partial(steps, size, name))


def sequences(
    size: Size, which: str, length: int, before: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Costs of all programs at a length, by what they cost at the two lengths before."""
    made: dict[Any, list[Array]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    results: dict[str, dict[str, Any]] = {}
    for name, (one, program) in programs(size, length).items():
        if not would_fit(name, before, size.run_seconds):
            continue
        capabilities = one.capabilities
        like = (capabilities.learned_query, capabilities.unit_vectors, one.token_arguments)
        if like not in made:
            made[like] = inputs(one, length, num_heads=size.num_heads, dim=size.dim)
        arguments = made[like], learned(one, size, length)
        compiled, results[name] = compile_program(PASSES[which](program), arguments)
        if results[name]["total_bytes"] > size.run_bytes:
            results[name]["not_run"] = f"needs {results[name]['total_bytes'] / 1e9:.1f} GB"
        else:
            calls[name] = partial(compiled, *arguments)
    if TWICE in calls:
        calls[AGAIN], results[AGAIN] = calls[TWICE], {}
    for name, times in in_turns(calls, size.rounds, size.seconds).items():
        results[name] |= {"milliseconds": spread(times), "runs": times}
    return {"results": results}


def programs(size: Size, length: int) -> dict[str, tuple[ops.Mechanism, Callable[..., Array]]]:
    """By name the mechanisms, and functions of their ``inputs`` and what they learn."""
    made = {}
    for name in size.mechanisms:
        one: Any = ops.get_mechanism(name)
        if hasattr(one, "max_length"):  # it learns something of each position
            one = dataclasses.replace(one, max_length=length)
        made[name] = one, partial(attend, one, one.capabilities.causal)
    softmax = ops.get_mechanism("softmax")
    made[SOFTMAX[False]] = softmax, partial(attend, softmax, False)
    for is_causal, name in XLA.items():
        made[name] = softmax, partial(by_xla, is_causal)
    return made


def attend(
    one: ops.Mechanism, is_causal: bool, arrays: list[Array], parameters: dict[str, Array]
) -> Array:
    q, k, v, gates = baselines.by_name(one, arrays)
    return one.attend(q, k, v, is_causal=is_causal, **gates, **parameters)


def by_xla(is_causal: bool, arrays: list[Array], parameters: dict[str, Array]) -> Array:
    return baselines.softmax_xla(*arrays, is_causal=is_causal)


def learned(one: ops.Mechanism, size: Size, length: int) -> dict[str, Array]:
    """What a mechanism learns of each position."""
    if not hasattr(one, "max_length"):
        return {}
    arguments = one.learned_parameters(size.num_heads, size.dim)
    key = jax.random.key(0)
    return {name: each.init(key, each.shape, np.float32) for name, each in arguments.items()}


def would_fit(name: str, before: Sequence[Mapping[str, Any]], run_seconds: float) -> bool:
    """Whether a run takes so long at most, by those at the two lengths before."""
    took = [results.get(name, {}).get("milliseconds") for results in before]
    if None in took:
        return False
    medians = [each["median"] for each in took]
    growth = medians[-1] / medians[0] if len(medians) == 2 else 1.0
    return not medians or growth * medians[-1] <= 1e3 * run_seconds


def steps(size: Size, name: str) -> dict[str, Any]:
    """Costs of a step, by the number of tokens that the state has taken in."""
    one = ops.get_mechanism(name)
    token = inputs(one, 1, num_heads=size.num_heads, dim=size.dim)
    calls, results = {}, {}
    for held in size.held:
        state = holding(size, one, held)
        results[str(held)] = {"state_bytes": sum(x.nbytes for x in jax.tree.leaves(state))}
        call, facts = make_step(one, state, token, donated=True)
        results[str(held)] |= facts
        calls[str(held)] = partial(run_steps, call, size.steps)
    for held, times in in_turns(calls, 3 * size.rounds, size.seconds).items():
        results[held]["milliseconds"] = spread([time / size.steps for time in times])
    return {"results": results}


def holding(size: Size, one: ops.Mechanism, held: int) -> Any:
    """A state after ``held`` tokens; a cache holds zeros and is full after the next token."""
    shape = (1, size.num_heads, size.dim, size.dim)
    if not one.capabilities.constant_memory:
        state = one.init_state(*shape, held)
        return dataclasses.replace(state, length=state.length + held - 1)
    q, k, v, gates = baselines.by_name(
        one, inputs(one, held, num_heads=size.num_heads, dim=size.dim)
    )
    return jax.jit(partial(one.attend, is_causal=True, return_state=True))(q, k, v, **gates)[1]


def run_steps(take: Callable[[], Any], count: int) -> None:
    """Waits for each output, as for tokens that come one by one."""
    for _ in range(count):
        jax.block_until_ready(take())


Points = Sequence[tuple[float, Sequence[float]]]
"""A length and what was measured there, by ascending length."""


def upper_half(points: Points) -> Points:
    """The points that an exponent is taken from; of three lengths two."""
    return points[len(points) // 2 :] if len(points) > 3 else points[-2:]


def exponent(points: Points) -> Interval | None:
    """The power of the length, and half of its 95 % interval; None for too few numbers."""
    far = upper_half(points)
    x = [math.log(length) for length, values in far for _ in values]
    y = [math.log(value) for _, values in far for value in values]
    if len(far) < 2 or len(x) < 3:
        return None
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2)) * fit.stderr
    return Interval(float(fit.slope), float(half))


def counted_exponent(points: Points) -> float | None:
    """The same of what is counted, one number a length."""
    far = upper_half(points)
    if len(far) < 2:
        return None
    return float(np.polyfit(*np.log([(n, value) for n, (value,) in far]).T, 1)[0])


def run_times(rows: Rows, which: str, name: str) -> list[tuple[float, list[float]]]:
    """Lengths, and milliseconds of each run there."""
    return [
        (row["length"], row["results"][name]["runs"])
        for row in rows
        if row["pass"] == which and "runs" in row["results"].get(name, {})
    ]


def memory(rows: Rows, which: str, name: str) -> list[tuple[float, list[float]]]:
    """Lengths, and temporary bytes there."""
    results = (
        (row["length"], row["results"].get(name, {})) for row in rows if row["pass"] == which
    )
    return [(n, [max(1, x["temporary_bytes"])]) for n, x in results if "temporary_bytes" in x]


def against_softmax(rows: Rows, which: str, name: str) -> list[tuple[float, float, float]]:
    """Lengths, and milliseconds of the faster softmax and of the mechanism."""
    is_causal = ops.get_mechanism(name).capabilities.causal
    ours = dict(run_times(rows, which, name))
    yards = [dict(run_times(rows, which, peers[is_causal])) for peers in (SOFTMAX, XLA)]
    return [
        (
            length,
            min(statistics.median(yard[length]) for yard in yards if length in yard),
            statistics.median(runs),
        )
        for length, runs in ours.items()
        if any(length in yard for yard in yards)
    ]


def table(rows: Rows, size: Size) -> str:
    few, many = (f"{held:,}" for held in size.held)
    heads = ["mechanism", "promised exponent of T", "time: forward", "with gradients"]
    heads += ["memory: forward", "with gradients", "faster than softmax from: forward"]
    heads += ["with gradients", "longest T", "temporary MB there"]
    heads += [f"µs per step at {few}", f"at {many}", "ratio", "off"]
    lines = [line(rows, size, name) for name in size.mechanisms]
    note = (
        "*off*: what deviates from the promised growth. A time exponent is off if its whole "
        f"interval is more than {POWER:g} away, and open if a part of it is. A memory exponent, "
        f"which may be at most 1, is off above {1 + POWER:g}. A step with constant memory is off "
        "if it takes longer with many tokens in the state, by the rule of times. Pairs of "
        "numbers are forward / with gradients."
    )
    return f"{markdown(heads, lines)}\n\n{note}\n\n{noise(rows)}"


def line(rows: Rows, size: Size, name: str) -> list[str]:
    times = {which: exponent(run_times(rows, which, name)) for which in PASSES}
    bytes_ = {which: counted_exponent(memory(rows, which, name)) for which in PASSES}
    cells = [name, str(expected_power(name))]
    cells += ["-" if x is None else f"{x.middle:.2f} ± {x.half:.2f}" for x in times.values()]
    cells += ["-" if x is None else f"{x:.2f}" for x in bytes_.values()]
    if name == SOFTMAX[True]:
        cells += ["-", "-"]
    else:
        cells += [where(against_softmax(rows, which, name)) for which in PASSES]
    longest = [(memory(rows, which, name), run_times(rows, which, name)) for which in PASSES]
    ran = [runs[-1][0] if runs else 0 for _, runs in longest]
    cells += [" / ".join(f"{n:,}" for n in ran)]
    counted = zip(ran, (dict(counts) for counts, _ in longest), strict=True)
    cells += [" / ".join(number(counts[n][0] / 1e6) if n else "-" for n, counts in counted)]
    step = step_times(rows, size, name)
    if step is None:
        cells += ["-", "-", "-"]
    else:
        ratio = step[1].over(step[0])
        cells += [number(1e3 * each.middle) for each in step]
        cells += [ratio.text()]
    return [*cells, off(name, times, bytes_, step)]


def step_times(rows: Rows, size: Size, name: str) -> list[Range] | None:
    """Milliseconds of a step with few and with many tokens held."""
    for row in rows:
        if row["pass"] == STEP and row["mechanism"] == name:
            return [Range.of(row["results"][str(held)]["milliseconds"]) for held in size.held]
    return None


def judge_exponent(power: Interval, whole: int) -> str:
    """Whether all of an interval is as near to a whole power as a rule requires."""
    middle, half = power
    return within(Range(middle, middle - half, middle + half), whole - POWER, whole + POWER)


def off(
    name: str,
    times: Mapping[str, Interval | None],
    bytes_: Mapping[str, float | None],
    step: list[Range] | None,
) -> str:
    """What is not as promised."""
    deviating = []
    for which, power in times.items():
        word = HOLDS if power is None else judge_exponent(power, expected_power(name))
        deviating += [f"time, {which}"] * (word == FAILS) + [f"open: {which}"] * (word == OPEN)
    deviating += [f"memory, {k}" for k, x in bytes_.items() if x is not None and x > 1 + POWER]
    if step is not None and kind(name) == CONSTANT and more([step[1].over(step[0])]) == HOLDS:
        deviating.append(STEP)
    return "; ".join(deviating) or "-"


def noise(rows: Rows) -> str:
    """How far the same program is from itself, run in the same turns."""
    heads, lines = ["pass", "T", f"{TWICE}: ms", "repeat: relative"], []
    for row in rows:
        if AGAIN in row["results"]:
            first, again = (Range.of(row["results"][x]["milliseconds"]) for x in (TWICE, AGAIN))
            ratio = again.over(first).text()
            lines.append([row["pass"], f"{row['length']:,}", number(first.middle), ratio])
    return markdown(heads, lines)


def plot(rows: Rows) -> Any:
    """Milliseconds against the length: a column a kind of mechanism, a row a pass."""
    names = list(dict.fromkeys(name for row in rows for name in row["results"]))
    kinds = {
        each: [name for name in names if name in ops.list_mechanisms() and kind(name) == each]
        for each in (CACHES, CONSTANT, WHOLE)
    }
    figure = import_figure()(figsize=(13, 9), layout="constrained")
    for axes_row, which in zip(figure.subplots(2, 3, sharey=True), PASSES, strict=True):
        for axes, (title, chosen) in zip(axes_row, kinds.items(), strict=True):
            peer = SOFTMAX[title != WHOLE]
            curves = {
                name: [(n, statistics.median(runs)) for n, runs in run_times(rows, which, name)]
                for name in dict.fromkeys([peer, *chosen])
            }
            axes.set_prop_cycle(linestyle=STYLES, color=COLORS)
            plot_lines(
                axes,
                curves,
                xlabel="T" if which == TRAINING else "",
                ylabel=f"{which}, ms" if axes is axes_row[0] else "",
            )
            if which == FORWARD:
                axes.set_title(title, fontsize=10)
            else:  # below, where it hides no line
                axes.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.36))
    return figure


def grows_in_training(name: str, power: int, what: Callable[..., Any]) -> Judge:
    """The verdict on a mechanism's time or memory with gradients."""

    def judge(rows: Rows) -> Verdict:
        numbers = what(rows, list(PASSES)[-1], name)
        points = [(length, statistics.median(runs)) for length, runs in numbers]
        grown = f"L^{rules.exponent(points):.2f} up to L = {points[-1][0]:,}"
        return Verdict(rules.grows(points, power), f"{grown} at a fixed D")

    return judge


EXPERIMENT = Measured(
    module="experiments.efficiency.growth",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=tuple(
        Statement(
            "Element-wise attention, table 1",
            f"{title} takes {said} proportional to L{'^2' * (power == 2)} in training",
            grows_in_training(name, power, what),
            stated=f"2026-11-29T{'22:36' if said == 'memory' else '18:48'}:00+00:00",
        )
        for title, name, said, power, what in (
            ("AFT", "aft", "time", 2, run_times),
            ("linear attention", "linear", "time", 1, run_times),
            ("AFT", "aft", "memory", 1, memory),
            ("linear attention", "linear", "memory", 1, memory),
        )
    ),
    left_out={
        "cpu": "an accelerator; runs that need more time or memory than the budgets above; a "
        "step of AFT, whose table of position biases has T x T numbers"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
