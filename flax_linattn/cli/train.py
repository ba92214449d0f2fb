"""``flax-linattn train TASK``."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from flax_linattn import training
from flax_linattn.checks import OptionError, choice
from flax_linattn.cli import FLAGS, flags
from flax_linattn.cli.runs import print_report
from flax_linattn.registry import TASKS, get_task
from flax_linattn.tasks import Config, InitRun, Task
from flax_linattn.tasks.options import mechanisms_by_direction
from flax_linattn.tasks.run import read_config
from flax_linattn.tasks.train import train_report


@dataclasses.dataclass(frozen=True)
class Start:
    """Options that the defaults of the other options depend on.

    Attributes:
        run: Folder of the run. Default: a folder in runs, named after the data and the options.
        resume: Resume the interrupted run in the folder --run. The defaults of data, model and
            training options are those of the run; options for devices and output are not saved.
        preset: Published protocol whose options are the defaults.
        init_run: Folder of a trained run whose parameters the new run starts from. Its options are
            the defaults; options for data and training may differ.
        refit_scales: Compute the input scales from the new data. Default: use the scales of the run
            given by --from.
        keep_optimizer: Start from the optimizer state of the run given by --from. Default: a new
            state.
        reinitialize_mismatched: Initialize parameters whose shapes differ from the run given by
            --from, such as the output layer for another horizon.
    """

    run: Path | None = None
    resume: bool = False
    preset: str | None = None
    init_run: Annotated[Path | None, tyro.conf.arg(name=FLAGS["init_run"])] = None
    refit_scales: bool = False
    keep_optimizer: bool = False
    reinitialize_mismatched: bool = False

    @property
    def init(self) -> InitRun | None:
        """The run to continue from, and what of it is taken over.

        Raises:
            OptionError: an option of such a run, without one.
        """
        options = {
            "refit_scales": self.refit_scales,
            "keep_optimizer": self.keep_optimizer,
            "reinitialize_mismatched": self.reinitialize_mismatched,
        }
        if self.init_run is not None:
            return InitRun(self.init_run, **options)
        if given := [name for name, value in options.items() if value]:
            raise OptionError(
                f"{given[0]} needs a run to continue from; give its folder.",
                given[0],
                "init_run",
            )
        return None


@dataclasses.dataclass(frozen=True)
class _Model:
    model: str | None = None


@dataclasses.dataclass(frozen=True)
class Devices:
    """Where a run is trained, and what is shown of it: options that do not change what it computes.

    Attributes:
        progress: Show a progress bar in a terminal. Notes on the data and a line for each
            validation are always printed.
        parallel: How training uses devices: jit over a mesh, pmap, or none. auto uses jit if the
            devices divide the batch.
        mesh: Axes of the device mesh, such as data=4,seq=2. Default: all devices along data.
        shard_parameters: Shard parameters and optimizer state over the devices as well (FSDP).
        accumulate: Number of parts of a batch whose gradients are accumulated.
        runs_at_once: With several runs, number of runs that each device trains at once. Default:
            all, and on a CPU as many as fit into its cache.
        tensorboard: Write event files for TensorBoard into the run folder (needs tensorboardX).
        profile: Number of training steps to trace with jax.profiler, into the run folder.
        distributed: Train as one of several processes that SLURM, Open MPI or Cloud TPU started.
        coordinator: HOST:PORT of process 0, for processes that you start yourself.
        num_processes: Number of processes.
        process_id: Index of this process, from 0.
    """

    progress: bool = True
    parallel: Literal["auto", "none", "jit", "pmap"] = "auto"
    mesh: str | None = None
    shard_parameters: bool = False
    accumulate: int = 1
    runs_at_once: int | None = None
    tensorboard: bool = False
    profile: int = 0
    distributed: bool = False
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class _Options(Generic[C]):
    start: Start
    config: C
    devices: Devices


def train_command(args: Sequence[str]) -> int:
    """Trains a run of a task.

    Args:
        args: the command line, the name of the task first.

    Returns:
        The exit status.
    """
    name, *args = args
    task = get_task(name)
    start, others = tyro.cli(Start, args=args, return_unknown_args=True, add_help=False)
    is_new = not start.resume and start.init is None
    if start.preset is None and is_new and task.default_preset is not None:
        chosen, _ = tyro.cli(_Model, args=others, return_unknown_args=True, add_help=False)
        usual = task.presets[task.default_preset](task.Config.of()).flat()["model"]
        preset = task.default_preset if chosen.model in (None, usual) else None
        start = dataclasses.replace(start, preset=preset)
    values: Any = tyro.cli(
        _Options[task.Config],  # type: ignore[name-defined]
        args=args,
        default=_Options(start, _defaults(task, start), Devices()),
        prog=f"flax-linattn train {name}",
        description=_description(task),
        config=flags.MARKERS,
        registry=flags.registry(),
    )
    with flags.only(flags.flat(values)):
        return _train(task, start, flags.flat(values["config"]), Devices(**values["devices"]), args)


def _train(
    task: Task[Any, Any, Any],
    start: Start,
    options: dict[str, Any],
    devices: Devices,
    args: Sequence[str],
) -> int:
    config = task.Config.of(**options)
    run_dir = start.run if start.run is not None else Path("runs") / config.name
    _start_process(devices)
    try:
        session = _session(run_dir, start.resume, devices)
        report = train_report(task, config, session, init_run=start.init)
    except training.Interrupted:
        if training.is_main():
            given = [a for a in args if a != "--resume"]
            given += [] if start.run is not None else ["--run", str(run_dir)]
            command = ["flax-linattn", "train", task.name]
            print(shlex.join([*command, *given, "--resume"]), file=sys.stderr)
        raise
    if training.is_main():
        print_report(report)
        print(f"run folder: {run_dir}")
    return 0


def _description(task: Task[Any, Any, Any]) -> str:
    mechanisms = ", ".join(mechanisms_by_direction(task.is_causal))
    presets = ", ".join(f"{name} ({_first_line(make)})" for name, make in task.presets.items())
    about = TASKS[task.name].about
    return (
        f"{about[0].upper()}{about[1:]}. Mechanisms: {mechanisms}. "
        f"Presets: {presets or 'none'}."
        + (f" Without another --model it is {task.default_preset}." if task.default_preset else "")
    )


def _first_line(function: Any) -> str:
    return (function.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _defaults(task: Task[Any, Any, Any], start: Start) -> Config:
    """The options of the run to resume or to continue, or the task's; with those of the preset."""
    if start.resume and start.run is None:
        raise OptionError("resuming a run needs its folder.", "run")
    earlier = start.run if start.resume else start.init_run
    config = task.Config.of() if earlier is None else read_config(earlier, task)
    if start.preset is None:
        return config
    if not task.presets:
        raise OptionError(f"the task {task.name!r} has no presets; remove the option.", "preset")
    choice(task.presets, preset=start.preset)
    preset: Config = task.presets[start.preset](config)
    return preset


def _start_process(devices: Devices) -> None:
    process = (devices.coordinator, devices.num_processes, devices.process_id)
    if devices.distributed or process != (None, None, None):
        training.start_process(*process)


def _session(run_dir: Path, resume: bool, devices: Devices) -> training.Session:
    trackers: list[training.Tracker] = [training.JsonLines(run_dir / "steps.jsonl")]
    if devices.tensorboard:
        trackers.append(training.TensorBoard(run_dir / "tensorboard"))
    parallel = training.Parallel(
        devices.parallel,
        devices.mesh,
        devices.shard_parameters,
        devices.accumulate,
        runs_at_once=devices.runs_at_once,
    )
    return training.Session(
        run_dir,
        resume=resume,
        progress=devices.progress or "lines",
        parallel=parallel,
        trackers=trackers,
        profile_steps=devices.profile,
    )
