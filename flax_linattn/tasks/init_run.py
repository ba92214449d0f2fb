"""Continuing from a trained run: a new run that starts from its parameters, on other data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from flax_linattn import models, training
from flax_linattn.checkpoint.arrays import array_signature, fingerprint, named_leaves
from flax_linattn.checks import OptionError, itemize, quote
from flax_linattn.tasks.config_file import read_config
from flax_linattn.tasks.files import read_json, write_json
from flax_linattn.tasks.options import Config, flat_hints
from flax_linattn.tasks.run import load_run, load_runs
from flax_linattn.tasks.spec import DataSpec, Run
from flax_linattn.tasks.task import Task
from flax_linattn.training.checkpointer import read_newest_progress

INIT_RUN_FILE = "init_run.json"
"""File that names the origin of the parameters, in the folder of a run that continues another."""
MAX_ARRAYS = 8
"""Maximum number of arrays that an error names."""


@dataclasses.dataclass(frozen=True)
class InitRun:
    """A run to continue from, and what is taken over besides its parameters.

    Args:
        run: Run folder, or a run in memory. In a folder of several seeds each new seed continues
            one; a single new seed continues the best, and a single run may start several seeds.
        refit_scales: Fit the scales of the inputs on the new data. Default: the scales of the run,
            so that inputs keep their meaning.
        keep_optimizer: Take over the optimizer state (moments); the learning rate schedule starts
            from its first step. Default: a new state.
        reinitialize_mismatched: Initialize parameters whose shapes differ, such as the output layer
            for another horizon. Default: such parameters are an error.

    Example:
        >>> InitRun("runs/first", keep_optimizer=True).name
        'runs/first'
    """

    run: str | Path | Run
    refit_scales: bool = False
    keep_optimizer: bool = False
    reinitialize_mismatched: bool = False

    @classmethod
    def of(cls, given: InitRun | Run | str | Path | None) -> InitRun | None:
        """Wraps a run or its folder with the default options."""
        return given if given is None or isinstance(given, InitRun) else cls(given)

    @property
    def name(self) -> str:
        """The name of the run folder in messages."""
        return "the given run" if isinstance(self.run, Run) else str(self.run)

    @property
    def folder(self) -> Path | None:
        """The run folder; None for a run in memory."""
        return None if isinstance(self.run, Run) else Path(self.run)

    def read_config(self, task: Task[Any, Any, Any]) -> Config:
        """The options of the run.

        Raises:
            FileNotFoundError: If there is no such run.
            ValueError: If the run is damaged, or belongs to another task.
        """
        if not isinstance(self.run, Run):
            return read_config(Path(self.run), task)
        if self.run.task.name != task.name:
            raise ValueError(
                f"the given run has the task {self.run.task.name!r}, expected {task.name!r}."
            )
        config: Config = self.run.config
        return config


class Initializer:
    """Initializes new runs from the parameters and scales of earlier runs.

    Attributes:
        config: Options of the new runs; options that depend on the data come from the earlier runs.
        reinitialized: Descriptions of the arrays whose shapes differ.
    """

    def __init__(self, init: InitRun, task: Task[Any, Any, Any], config: Config) -> None:
        self._init, self._before = init, init.read_config(task)
        self.config = config.with_auto_options(self._before)
        self._check_model_options()
        self._runs = self._load()
        self.reinitialized: list[str] = []
        if init.keep_optimizer:
            self._check_optimizer()

    def spec(self, data_spec: DataSpec) -> DataSpec:
        """The data spec of the new runs."""
        previous: DataSpec = self._runs[0].data_spec
        spec = data_spec.continue_from(previous, refit_scales=self._init.refit_scales)
        spec.check()
        return spec

    def fill(self, new_models: Sequence[nnx.Module]) -> None:
        """Copies the variables of the earlier models into new ones, except calibrations."""
        for model, run in zip(new_models, self._runs, strict=True):
            state = _variables(model)
            new, old = named_leaves(state), named_leaves(_variables(run.model))
            expected, got = (
                {name: array_signature(leaf) for name, leaf in leaves.items()}
                for leaves in (new, old)
            )
            self.reinitialized = [
                f"{n}: expected {expected.get(n, 'nothing')}, got {got.get(n, 'nothing')}"
                for n in new | old
                if expected.get(n) != got.get(n)
            ]
            if self.reinitialized and not self._init.reinitialize_mismatched:
                raise self._mismatch(len(new))
            leaves = [old[n] if got.get(n) == expected[n] else leaf for n, leaf in new.items()]
            nnx.update(model, jax.tree.unflatten(jax.tree.structure(state), leaves))

    def opt_state(self, optimizer: optax.GradientTransformation, model: nnx.Module) -> Any:
        """The optimizer's state to start with; None for a new one."""
        if not self._init.keep_optimizer:
            return None
        folder = self._init.folder
        assert folder is not None
        skip = self._init.reinitialize_mismatched
        return training.load_opt_state(optimizer, model, folder, skip_mismatched=skip)

    @property
    def about(self) -> str:
        """A sentence that names the run to continue, and its step."""
        steps = {str(step) for step in self._steps if step is not None}
        after = f", after step {itemize(sorted(steps))}" if steps else ""
        return f"continuing from {self._init.name}{after}"

    @property
    def notes(self) -> list[str]:
        """Notes on the arrays that were initialized, one line each."""
        return [f"initialized because the shape differs: {line}" for line in self.reinitialized]

    def write(self, run_dir: Path) -> None:
        """Writes the origin of the parameters to the folder of the new runs."""
        folder = self._init.folder
        origins = [
            {"parameters": fingerprint(run.model), "step": step}
            for run, step in zip(self._runs, self._steps, strict=True)
        ]
        values = {
            "run": None if folder is None else str(folder.resolve()),
            "origins": origins,
            "refit_scales": self._init.refit_scales,
            "keep_optimizer": self._init.keep_optimizer,
            "reinitialized": self.reinitialized,
        }
        write_json(run_dir / INIT_RUN_FILE, values)

    @property
    def _steps(self) -> list[int | None]:
        """Training step of the parameters that are taken over, for each earlier run."""
        folder = self._init.folder
        if folder is None:
            return [None] * len(self._runs)
        _, progress = read_newest_progress(folder)
        return [progress.history.runs[run.seed_index or 0].best_step for run in self._runs]

    def _load(self) -> tuple[Run, ...]:
        """The earlier run of each new run."""
        if isinstance(self._init.run, Run):
            return (self._init.run,) * self.config.fit.runs
        folder, before, now = Path(self._init.run), self._before.fit.runs, self.config.fit.runs
        if 1 in (before, now):
            return (load_run(folder),) * now
        if before != now:
            raise OptionError(
                f"{folder} holds {before} runs, got runs={now}; continue each of them with "
                f"runs={before}, or the best one with runs=1.",
                "runs",
            )
        runs = load_runs(folder)
        if len(runs) < before:
            raise OptionError(
                f"{before - len(runs)} of the {before} runs in {folder} failed; continue the best "
                "one with runs=1.",
                "runs",
            )
        return runs

    def _check_model_options(self) -> None:
        options = flat_hints(type(self.config.model))
        for name, (before, now) in self._before.differences(self.config).items():
            if name in options:
                raise OptionError(
                    f"{self._init.name} has {name}={before!r}, got {now!r}; a run that "
                    "continues another run keeps its model options. Remove the option, or start a "
                    "new run.",
                    name,
                )

    def _check_optimizer(self) -> None:
        if self._init.folder is None or self._before.fit.runs > 1:
            raise OptionError(
                "keep_optimizer=True needs the folder of a single run to continue, got "
                f"{self._init.name}; remove keep_optimizer=..., or continue a single run.",
                "keep_optimizer",
            )
        before, now = (c.fit.optimizer.optimizer for c in (self._before, self.config))
        if before != now:
            raise OptionError(
                f"the optimizer {now!r} cannot continue the state of {before!r}, the optimizer of "
                f"{self._init.name}; choose optimizer={before!r}, or remove keep_optimizer=....",
                "optimizer",
                "keep_optimizer",
            )

    def _mismatch(self, count: int) -> OptionError:
        lines = self.reinitialized[:MAX_ARRAYS]
        if len(self.reinitialized) > MAX_ARRAYS:
            lines.append(f"and {len(self.reinitialized) - MAX_ARRAYS} more")
        data_options = flat_hints(type(self.config.data))
        values = [
            f"{name}={quote(now)} (was {quote(before)})"
            for name, (before, now) in self._before.differences(self.config).items()
            if name in data_options
        ]
        options = f"Data options that differ: {', '.join(values)}. " if values else ""
        return OptionError(
            f"{len(self.reinitialized)} of {count} arrays of the model do not match the arrays of "
            f"{self._init.name}:\n  " + "\n  ".join(lines) + f"\n{options}Use the options and data "
            "of that run, or pass reinitialize_mismatched=True to initialize these arrays.",
            "reinitialize_mismatched",
        )


def check_resumed(run_dir: Path, init: InitRun | None) -> bool:
    """Whether the run to resume continues another run; checks that it is the given one, if any."""
    path = run_dir / INIT_RUN_FILE
    before = read_json(path).get("run") if path.exists() else None
    folder = None if init is None else init.folder
    if init is not None and (folder is None or str(folder.resolve()) != before):
        raise OptionError(
            f"the run in {run_dir} continues {before or 'no other run folder'}, got {init.name}; "
            "remove init_run=... to resume it.",
            "init_run",
        )
    return path.exists()


def _variables(model: nnx.Module) -> nnx.State:
    """All variables except the calibration, which is set after training."""
    return nnx.state(model, nnx.Not(models.FittedVariable))
