"""The longest sequence on which an encoder trains in 4 GB, by mechanism.

    python -m experiments.sequences.memory

TaylorShift's ListOps model at the paper's size, and with heads of 16 channels, one sequence per
batch. Memory is XLA's estimate for the compiled training step (forward, backward and update), with
its arguments and results. Nothing is run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.measured import Measured, Rows
from experiments.options import task_config
from experiments.sequences.monitoring import logits_by
from experiments.sequences.rules import longer
from experiments.statements import Judge, Statement
from experiments.verdicts import Verdict, combine, rows_with
from flax_linattn import tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown, number
from flax_linattn.tasks.classify import SequenceSpec
from flax_linattn.tasks.classify.metrics import make_label_loss
from flax_linattn.training.state import split_model

PRESET = "taylorshift-listops"
LIMIT = 4e9
"""Bytes."""
NEAR = 1.05
"""How many times as long a sequence may be that no longer fits."""
MULTIPLE = 64
"""Lengths are multiples of it."""
FIRST = 2048
"""Tokens to begin with."""
MAX_TOKENS = 1 << 20
"""Tokens beyond which nothing is tried."""
COMPILER = {"xla_backend_optimization_level": 0}
"""What machine code is made of a program, in a third of the time; its buffers are the same."""

KINDS: dict[str, tuple[str, str]] = {
    "softmax, all weights": ("softmax:implementation=xla", "parallel"),
    "softmax, in blocks": ("softmax", "chunked"),
    "taylorshift, direct": ("taylorshift", "direct"),
    "taylorshift, efficient": ("taylorshift", "efficient"),
}
"""Mechanism and form by name; the first is attention as XLA has it."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the compilations at one scale."""

    kinds: tuple[str, ...] = tuple(KINDS)
    heads: tuple[int, ...] = (8, 32)
    remat: tuple[str, ...] = ("none", "blocks")
    limit: float = LIMIT


def step_bytes(kind: str, num_heads: int, remat: str, length: int, **options: Any) -> int:
    """Bytes of a training step of one sequence: temporaries, arguments and results.

    Args:
        kind: a key of ``KINDS``.
        num_heads: of each layer.
        remat: what the gradient keeps, see ``models.Layers``.
        length: tokens, without the class token.
        **options: of the run, such as a smaller model.
    """
    mechanism, form = KINDS[kind]
    chosen = {"mechanism": mechanism, "num_heads": num_heads, "remat": remat, "batch_size": 1}
    chosen |= {"min_length": length, "max_length": length}
    config = task_config("sequence", preset=PRESET, **chosen | options)
    task = tasks.get_task("sequence")
    digits = tuple(map(str, range(10)))
    data_spec = SequenceSpec("listops", "listops", digits, length, checksum="")
    model = nnx.eval_shape(lambda: task.model(config, data_spec))
    objective = task.objective(config, data_spec, config.data.epoch_size)
    loss_fn = make_label_loss(logits_by(form), config.fit.label_smoothing)
    graphdef, params, rest = split_model(model)
    names = ("accuracy", "loss")
    create = partial(training.TrainState.create, optimizer=objective.optimizer, metric_names=names)
    state = jax.eval_shape(lambda params, rest: create(params, rest), params, rest)
    step: Any = training.make_train_step(graphdef, loss_fn, objective.optimizer, seed=0)
    batch = {
        "tokens": jax.ShapeDtypeStruct((1, length), jnp.int32),
        "mask": jax.ShapeDtypeStruct((1, length), bool),
        "labels": jax.ShapeDtypeStruct((1,), jnp.int32),
    }
    jax.clear_caches()
    lowered = step.func.lower(*step.args, state, batch)
    memory: Any = lowered.compile(compiler_options=COMPILER).memory_analysis()
    total = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    return int(total + memory.output_size_in_bytes - memory.alias_size_in_bytes)


def longest(bytes_of: Callable[[int], int], limit: float, first: int = FIRST) -> dict[str, Any]:
    """The longest length whose bytes are within a limit, to ``NEAR``.

    Bytes are taken to grow with the length, by a power of it near the limit.

    Args:
        bytes_of: of a length.
        limit: in bytes.
        first: the length to begin with.

    Returns:
        "length" and its "bytes", "beyond", the shortest length tried that does not fit, None where
        ``MAX_TOKENS`` tokens do, and "tried", all lengths with their bytes.

    Example:
        >>> found = longest(lambda n: n * n, 1e8)
        >>> found["length"] <= 10_000 < found["beyond"], found["beyond"] < 1.06 * found["length"]
        (True, True)
    """
    tried: dict[int, int] = {}
    low, high, length = 0, None, _multiple(first)
    while True:
        tried[length] = bytes_of(length)
        if tried[length] <= limit:
            low = length
        else:
            high = length
        if low >= MAX_TOKENS or (high is not None and high <= max(NEAR * low, low + MULTIPLE)):
            break
        length = _next(tried, low, high, limit)
    lines = [{"length": n, "bytes": tried[n]} for n in sorted(tried)]
    return {"length": low, "bytes": tried.get(low, 0), "beyond": high, "tried": lines}


def _next(tried: dict[int, int], low: int, high: int | None, limit: float) -> int:
    """A length that should fit just so by a power law through what is nearest; else one beyond."""
    if not low:
        assert high is not None
        return _multiple(high / 2)
    if len(tried) == 1:
        return 2 * low
    a, b = (low, high) if high is not None else sorted(tried)[-2:]
    power = max(0.5, math.log(tried[b] / tried[a]) / math.log(b / a))
    guess = _multiple(a * (limit / tried[a]) ** (1 / power) / NEAR**0.5)
    max_length = MAX_TOKENS if high is None else high - MULTIPLE
    return min(max(guess, _multiple(NEAR * low), low + MULTIPLE), max_length)


def _multiple(length: float) -> int:
    return max(1, round(length / MULTIPLE)) * MULTIPLE


def measure(size: Size, journal: Journal) -> None:
    for heads in size.heads:
        for remat in size.remat:
            for kind in size.kinds:
                key = {"kind": kind, "heads": heads, "remat": remat}
                journal.row(
                    key, partial(longest, partial(step_bytes, kind, heads, remat), size.limit)
                )


def find_rows(rows: Rows, kind: str) -> dict[tuple[int, str], dict[str, Any]]:
    """The rows of a kind by heads and remat.

    Raises:
        NotMeasuredError: there are none.
    """
    return {(row["heads"], row["remat"]): row for row in rows_with(rows, kind, kind=kind)}


def judge_longer(ours: str, other: str) -> Judge:
    """The verdict on how much longer sequences one kind can take than another."""

    def judge(rows: Rows) -> Verdict:
        mine, theirs = find_rows(rows, ours), find_rows(rows, other)
        words, texts = [], []
        for case in mine.keys() & theirs.keys():
            ratio = mine[case]["length"] / max(1, theirs[case]["length"])
            words.append(longer(ratio))
            texts.append((case, f"{ratio:.2f} times ({case[0]} heads, remat {case[1]})"))
        return Verdict(combine(words), ", ".join(text for _, text in sorted(texts)))

    return judge


def table(rows: Rows, size: Size) -> str:
    """One line per kind, number of heads and remat."""
    heads = ["attention", "heads", "remat", "longest sequence, tokens", "bytes per token"]
    lines = [
        [
            row["kind"],
            f"{row['heads']}",
            row["remat"],
            f"{row['length']:,}" if row["beyond"] else f"{row['length']:,} or more",
            number(row["bytes"] / row["length"]) if row["length"] else "-",
        ]
        for row in rows
    ]
    note = (
        f"Each length is the longest found to fit in {size.limit / 1e9:g} GB; {NEAR:g} "
        "times that length does not fit. Bytes per token count the whole step, including "
        "parameters and optimizer moments."
    )
    return f"{markdown(heads, lines)}\n\n{note}"


EXPERIMENT = Measured(
    module="experiments.sequences.memory",
    about="TaylorShift, section 5.2: at 2,000 tokens it needs 35 % of the Transformer's memory in "
    "inference; of training it measures 1,024 tokens alone (table 5)",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(
            "TaylorShift, section 5.2, of training",
            "the efficient form takes longer sequences than softmax, all weights at once, in the "
            "same memory",
            judge_longer("taylorshift, efficient", "softmax, all weights"),
        ),
        Statement(
            "this library, not in the paper",
            "the efficient form takes longer sequences than softmax in blocks",
            judge_longer("taylorshift, efficient", "softmax, in blocks"),
        ),
        Statement(
            "this library, not in the paper",
            "the efficient form takes longer sequences than the direct one, in blocks of rows",
            judge_longer("taylorshift, efficient", "taylorshift, direct"),
        ),
    ),
    is_deterministic=True,
    left_out={
        "": "accelerators, whose compilers allocate buffers differently and, unlike the CPU "
        "compiler, honor remat; the other mechanisms, and most of 32 heads, for lack of time; "
        "batches of several sequences; running any of these steps"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
