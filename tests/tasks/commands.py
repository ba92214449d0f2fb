"""Commands as users give them, for tests."""

import contextlib
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from flax_linattn import cli
from flax_linattn.tasks.lines import Rows
from flax_linattn.training import fit_runs

SIZES = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}
"""Of a model that trains in seconds."""

FEW_FEATURES = {"num_features": 84}
"""Options for a small closed-form part of the classifier, which compiles in a fifth of the time."""


def flags(options: Mapping[str, object]) -> list[str]:
    """Options as flags."""
    names = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
    return [word for pair in names for word in pair]


def fast(names: Iterable[str], *kept: str) -> list[Any]:
    """Of these the ones that are kept are fast tests, the others slow."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


SMALL = [*flags(SIZES | {"epochs": 2}), "--parallel", "none"]
SMALL_CLASSIFIER = [*SMALL, *flags(FEW_FEATURES), "--batch-size", "90"]
"""A run on Japanese Vowels in seconds."""


@contextlib.contextmanager
def no_drawing() -> Iterator[None]:
    """Runs made inside draw no figures, for fixtures of a module; of a test, ``no_figures``."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib.figure", None)
        yield


@contextlib.contextmanager
def no_training() -> Iterator[None]:
    """Runs made inside keep their first parameters, at a third of the time.

    All else is as ever: files, batches, checkpoints, the test. A step only counts. For fixtures of
    a module and tests elsewhere; of a test of tasks, ``no_steps``.
    """

    def ones(metrics):
        return jax.tree.map(jnp.ones_like, metrics)

    def step(state, batch):
        return dataclasses.replace(state, step=state.step + 1, metrics=ones(state.metrics))

    def validate(params, model_state, total, batch):
        return ones(total)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fit_runs, "make_train_step", lambda *args: step)
        patched.setattr(fit_runs, "make_evaluation_step", lambda *args: validate)
        yield


def succeed(capsys, *args: str) -> str:
    """Runs a command; returns what it printed."""
    capsys.readouterr()
    assert cli.main(list(args)) == 0
    return capsys.readouterr().out


def fail(capsys, *args: str) -> str:
    """Runs a command that the user must mend; returns its message."""
    assert cli.main(list(args)) == 2
    message = capsys.readouterr().err
    assert message
    return message


def read_lines(parse, lines: Iterable[str], *args, name: str = "standard input") -> list:
    """What the lines of a stream hold."""
    return list(Rows(lines, f"{name}:").parse(lambda lines: parse(lines, *args)))


def one_line(message: str) -> str:
    """A message without its frame."""
    return re.sub(r"[\s│]+", " ", message)


def command_line(*args: str, **pipes) -> subprocess.Popen:
    """The command in a process of its own, with stderr piped."""
    return subprocess.Popen(
        [sys.executable, "-m", "flax_linattn", *args],
        stderr=subprocess.PIPE,
        text=True,
        **pipes,
    )
