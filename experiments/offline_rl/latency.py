"""Time and memory of inference modes: Aaren, figure 5, in the setting of its table 1.

    python -m experiments.offline_rl.latency

An agent acts in every step of an episode. The modes are a recomputed window of 20 steps (as in the
published code), a cache of the keys and values of all steps, a state of constant size, and a state
that restarts after every 20 steps. The model has 3 blocks of 128 features. It is not trained, since
the values of parameters do not change the time. A measured time covers a whole action, from arrays
on the host to arrays on the host.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.measured import Measured, Rows
from experiments.rules import no_more
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Verdict, combine, opposite
from flax_linattn import control, inference, models, tasks
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.checks import format_bytes
from flax_linattn.tasks.offline_rl import OfflineRLConfig, OfflineRLSpec
from flax_linattn.tasks.offline_rl.agent import DecisionAgent, StreamMemory, make_agent

ENVIRONMENT, OBSERVATION, ACTION, CONTEXT = "HalfCheetah-v5", 17, 6, 20
"""The robot whose sizes these are, and the published window."""

WAYS = ("stream", "restart", "window", "cache")
MECHANISM = {"stream": "aaren", "restart": "aaren", "window": "softmax", "cache": "softmax"}


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the timing at one scale."""

    steps: tuple[int, ...] = (20, 1_000, 10_000)
    """At which a step is timed; and, but for the first, how long episodes are that are timed."""
    rows: tuple[int, ...] = (1, 64)
    repeats: int = 2 * CONTEXT
    """Timed steps; a multiple of the context, so that all kinds of restarted steps count alike."""
    played: tuple[int, ...] = (1, 10, 64)
    """Rows that play an episode each."""
    features: int = 128
    num_layers: int = 3
    num_heads: int = 1
    max_cache_bytes: int = 8 * 2**30
    """Of a cache that is tried."""


def measure(size: Size, journal: Journal) -> None:
    for rows in size.rows:
        for steps in size.steps:
            for way in WAYS:
                key = {"way": way, "rows": rows, "step": steps}
                journal.row(key, partial(time_step, size, way, rows, steps))
    for steps in size.steps[1:]:
        for way in WAYS:
            key = {"way": way, "rows": 1, "episode": steps}
            journal.row(key, partial(episode, size, way, steps))
    for rows in size.played:
        for way in WAYS:
            key = {"way": way, "rows": rows, "played": ENVIRONMENT}
            journal.row(key, partial(episodes, size, way, rows))


def make_run(size: Size, mechanism: str) -> tasks.Run:
    """A run without a training: its model has waves for times, so that they have no end."""
    config = OfflineRLConfig().replace(
        mechanism=mechanism, position="sinusoidal", features=size.features, hidden_features=None,
        num_layers=size.num_layers, num_heads=size.num_heads, context=CONTEXT,
    )  # fmt: skip
    data_spec = OfflineRLSpec(
        dataset="none", env_id=ENVIRONMENT, observation_mean=(0.0,) * OBSERVATION,
        observation_scale=(1.0,) * OBSERVATION, action_low=(-1.0,) * ACTION,
        action_high=(1.0,) * ACTION, return_scale=1000.0, target_return=6000.0, mean_return=0.0,
        best_return=0.0, max_steps=1000, num_train_steps=1,
    )  # fmt: skip
    model = models.DecisionTransformer(
        OBSERVATION, ACTION, position="sinusoidal", max_length=None, layers=config.layers,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    return tasks.Run(tasks.get_task("offline-rl"), config, data_spec, model)


ACT = {"stream": "stream", "cache": "stream", "restart": "restart", "window": "window"}


def make_size_agent(size: Size, way: str, rows: int, max_steps: int) -> DecisionAgent:
    """An agent for episodes of at most ``max_steps`` steps."""
    return make_agent(make_run(size, MECHANISM[way]), rows, max_steps, act=ACT[way])


def cache_bytes(size: Size, rows: int, steps: int) -> int:
    """Of keys and values of three tokens a step."""
    return 4 * 2 * 3 * steps * rows * size.features * size.num_layers


def time_step(size: Size, way: str, rows: int, steps: int) -> dict[str, Any]:
    """The median time of a step after ``steps`` others; for restarts the mean."""
    max_steps = steps + size.repeats + 2
    if way == "cache" and cache_bytes(size, rows, max_steps) > size.max_cache_bytes:
        return {"milliseconds": None, "bytes": None}
    agent = make_size_agent(size, way, rows, max_steps)
    act = actor(rows)
    act(agent, True)
    # A cache attends to all of its slots from the first step on, so that none has to be filled.
    if way == "stream" and isinstance(agent.memory, StreamMemory):
        before = np.random.default_rng(1).normal(size=(rows, steps - 1, 3 + OBSERVATION + ACTION))
        before[..., 1] = 1
        agent.memory.stream.prefill(before.astype(np.float32), chunk_size=min(steps - 1, 100))
    elif way != "cache":
        for _ in range(2 * CONTEXT):
            act(agent)
    times = []
    for _ in range(size.repeats):
        begun = time.perf_counter()
        act(agent)
        times.append(1e3 * (time.perf_counter() - begun))
    jax.clear_caches()
    middle = statistics.mean if way == "restart" else statistics.median
    return {"milliseconds": middle(times), "bytes": memory_bytes(agent)}


def actor(rows: int) -> Callable[..., None]:
    """Lets an agent answer what is seen."""
    observations = np.random.default_rng(0).normal(size=(rows, OBSERVATION)).astype(np.float32)
    rewards = np.ones(rows, np.float32)

    def act(agent: DecisionAgent, begins: bool = False) -> None:
        agent.act(observations, rewards, np.full(rows, begins))

    return act


def memory_bytes(agent: DecisionAgent) -> int:
    """Of what an agent keeps of the past."""
    return inference.state_bytes(agent.memory.state)


def episode(size: Size, way: str, steps: int) -> dict[str, Any]:
    """The time of all steps of an episode, one after another."""
    agent, act = make_size_agent(size, way, 1, steps), actor(1)
    act(agent, True)
    if way == "restart":
        for _ in range(CONTEXT):  # compiles both kinds of step
            act(agent)
    seconds, begun = [], time.perf_counter()
    for number in range(1, steps + 1):
        act(agent, number == 1)
        if number % (steps // 10) == 0:
            seconds.append(round(time.perf_counter() - begun, 3))
    num_bytes = memory_bytes(agent)
    jax.clear_caches()
    return {"seconds": seconds, "bytes": num_bytes}


def episodes(size: Size, way: str, rows: int) -> dict[str, Any]:
    """How many episodes of the robot are played in a minute, rows at once."""
    with closing(control.make_environments(ENVIRONMENT, rows)) as environments:
        agent = make_size_agent(size, way, rows, control.max_episode_steps(environments))
        act = actor(rows)
        act(agent, True)
        for _ in range(CONTEXT if way == "restart" else 0):
            act(agent)
        begun = time.perf_counter()
        played = control.play(agent, environments, range(rows))
        seconds = time.perf_counter() - begun
    jax.clear_caches()
    return {"episodes_per_minute": 60 * rows / seconds, "steps": played.num_steps}


def at(timed_rows: Rows, /, **key: Any) -> dict[str, Any]:
    """The row of a key.

    Raises:
        NotMeasuredError: it was not timed.
    """
    for row in timed_rows:
        if all(row.get(name) == value for name, value in key.items()):
            return row
    raise NotMeasuredError(str(key))


def constant(way: str) -> Judge:
    """The verdict on the time of a way's steps, over numbers of rows."""

    def judge(rows: Rows) -> Verdict:
        words, texts = [], []
        for num_rows in dict.fromkeys(row["rows"] for row in rows if "step" in row):
            timed = [
                row
                for row in rows
                if (row["way"], row["rows"]) == (way, num_rows) and row.get("milliseconds")
            ]
            first, last = timed[0], timed[-1]
            ratio = last["milliseconds"] / first["milliseconds"]
            words.append(no_more([ratio]))
            what = "environment" if num_rows == 1 else "environments"
            texts.append(
                f"{num_rows} {what}: step {last['step']:,} takes {ratio:.2f} times as long as step "
                f"{first['step']:,}"
            )
        return Verdict(combine(words), "; ".join(texts))

    return judge


def grows(way: str) -> Judge:
    """The verdict on the claim that a way's steps take longer the longer the episode."""

    def judge(rows: Rows) -> Verdict:
        word, ours = constant(way)(rows)
        return Verdict(opposite(word), ours)

    return judge


def table(rows: Rows, size: Size) -> str:
    """Milliseconds a step, then seconds of episodes, then episodes a minute."""
    header = ["milliseconds per step, bytes of context", "environments", *WAYS]
    lines = []
    for num_rows in size.rows:
        for step in size.steps:
            timed = [at(rows, way=way, rows=num_rows, step=step) for way in WAYS]
            cells = [
                "too large"
                if row["milliseconds"] is None
                else f"{row['milliseconds']:.2f}, {format_bytes(row['bytes'])}"
                for row in timed
            ]
            lines.append([f"at step {step:,}", str(num_rows), *cells])
    of_episodes = [
        [f"{steps:,} steps", *(_or_not_run(_seconds, rows, way=way, episode=steps) for way in WAYS)]
        for steps in size.steps[1:]
    ]
    of_play = [
        [
            str(number),
            *(_or_not_run(_pace, rows, way=way, rows=number, played=ENVIRONMENT) for way in WAYS),
        ]
        for number in size.played
    ]
    note = (
        "Median time of a complete step (for restarts the mean, since every tenth step processes "
        "ten), and the bytes stored of the past. The stream and the restarts are Aaren's, the "
        "cache and the window softmax attention's, with three tokens per step. A cache is "
        "allocated for the whole episode, so its first steps cost as much as its last ones."
    )
    return "\n\n".join(
        [
            markdown(header, lines),
            note,
            markdown(["seconds per episode (of its first half)", *WAYS], of_episodes),
            markdown([f"episodes a minute, {ENVIRONMENT}, at once", *WAYS], of_play),
        ]
    )


def _or_not_run(
    format_row: Callable[[dict[str, Any]], str], timed_rows: Rows, /, **key: Any
) -> str:
    try:
        return format_row(at(timed_rows, **key))
    except NotMeasuredError:
        return "not run"


def _seconds(row: dict[str, Any]) -> str:
    return f"{row['seconds'][-1]:.1f} ({row['seconds'][4]:.1f})"


def _pace(row: dict[str, Any]) -> str:
    return f"{row['episodes_per_minute']:.1f}"


def plot(rows: Rows) -> Any:
    """Cumulative time and memory, as in the paper's figure 5."""
    figure = import_figure()(figsize=(8.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, way in enumerate(WAYS):
        color = f"C{number}"
        own = [row for row in rows if row["way"] == way and "episode" in row]
        longest = max(own, key=lambda row: row["episode"])
        x = [longest["episode"] * (n + 1) / 10 for n in range(10)]
        left.plot(x, longest["seconds"], "o-", markersize=3, color=color, label=way)
        timed = [r for r in rows if r["way"] == way and r["rows"] == 1 and "step" in r]
        points = [(r["step"], r["bytes"]) for r in timed if r["bytes"]]
        right.plot(*zip(*points, strict=True), "o-", markersize=3, color=color, label=way)
    left.set(xlabel="step of the episode", ylabel="cumulative seconds", xscale="log", yscale="log")
    right.set(xlabel="step of the episode", ylabel="bytes stored", xscale="log", yscale="log")
    left.legend(frameon=False)
    return figure


EXPERIMENT = Measured(
    module="experiments.offline_rl.latency",
    extras="plots,rl",
    about="Aaren, figure 5: memory and cumulative time of a stream; there not in a robot's setting",
    sizes={"": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=(
        Statement("Aaren, figure 5", "Aaren's steps take constant time", constant("stream")),
        Statement(
            "Aaren, figure 5",
            "steps with a cache take longer the longer the episode the cache is allocated for",
            grows("cache"),
        ),
        Statement("ours", "steps with a window take constant time", constant("window")),
        Statement("ours", "steps with restarts take constant time", constant("restart")),
    ),
    left_out={
        "": "accelerators; the paper's width of 512; for lack of time the cache's episode of "
        "10,000 steps and playing 64 environments with a cache, whose steps are timed"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
