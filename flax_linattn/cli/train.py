"""``flax-linattn train TASK``."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flax_linattn.checks import OptionError, check_choice
from flax_linattn.cli import flags
from flax_linattn.cli.runs import print_report
from flax_linattn.registry import TASKS, get_task, get_task_options
from flax_linattn.tasks.config_file import read_config
from flax_linattn.tasks.options import Config, TaskOptions, mechanisms_by_direction

if TYPE_CHECKING:
    from flax_linattn.tasks import InitRun
    from flax_linattn.training import Session


@dataclasses.dataclass(frozen=True)
class Start:
    """Options that the defaults of the other options depend on.

    Attributes:
        run: Folder of the run. Default: a folder in runs, named after the data and the options.
        resume: Resume the interrupted run in the folder --run. Options for data, model and training
            default to the values of the run; options for devices and output are not saved.
        preset: Preset whose options become the defaults; the presets are listed above.
        init_run: Folder of a trained run whose parameters the new run starts from. Options default
            to the values of that run; options for data and training may differ.
        refit_scales: Compute the input scales from the new data. Default: use the scales of the run
            given by --from.
        keep_optimizer: Start from the optimizer state of the run given by --from. Default: a new
            state.
        reinitialize_mismatched: Initialize parameters whose shapes differ from the run given by
            --from, such as the output layer for another horizon.
    """

    main_options: ClassVar[tuple[str, ...]] = ("preset", "run", "resume")
    run: Path | None = None
    resume: bool = False
    preset: str | None = None
    init_run: Path | None = None
    refit_scales: bool = False
    keep_optimizer: bool = False
    reinitialize_mismatched: bool = False

    @property
    def init(self) -> InitRun | None:
        """The run to start from, and what the new run takes from it.

        Raises:
            OptionError: If an option needs ``--from``, which is not given.
        """
        options = {
            "refit_scales": self.refit_scales,
            "keep_optimizer": self.keep_optimizer,
            "reinitialize_mismatched": self.reinitialize_mismatched,
        }
        if self.init_run is not None:
            from flax_linattn.tasks import InitRun

            return InitRun(self.init_run, **options)
        if given := [name for name, value in options.items() if value]:
            raise OptionError(
                f"{given[0]} needs a run to start from; pass its folder.",
                given[0],
                "init_run",
            )
        return None


@dataclasses.dataclass(frozen=True)
class _Model:
    model: str | None = None


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices and processes of a training, which do not change what is computed.

    Attributes:
        parallel: How training uses several devices: "jit" (over the device mesh), "pmap" or "none".
            "auto" uses jit if the number of devices divides the batch size.
        mesh: Axes of the device mesh, such as data=4,seq=2. Default: all devices along data.
        shard_parameters: Shard parameters and optimizer state over the devices as well (FSDP).
        accumulate: Number of parts of each batch, whose gradients are accumulated.
        runs_at_once: Number of runs that each device trains at once, with --runs. Default: all; on
            a CPU as many as fit into its cache.
        distributed: Train as one of several processes that SLURM, Open MPI, Kubernetes or Cloud
            TPU started.
        coordinator: HOST:PORT of process 0, for processes that you start yourself.
        num_processes: Number of processes, with --coordinator.
        process_id: Index of this process, from 0, with --coordinator.
    """

    parallel: Literal["auto", "none", "jit", "pmap"] = "auto"
    mesh: str | None = None
    shard_parameters: bool = False
    accumulate: int = 1
    runs_at_once: int | None = None
    distributed: bool = False
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


@dataclasses.dataclass(frozen=True)
class Output:
    """What a training reports while it runs.

    Attributes:
        progress: Show a progress bar in a terminal. Notes on the data and a line for each
            validation are always printed.
        tensorboard: Write event files for TensorBoard into the run folder (needs tensorboardX).
        profile: Number of training steps to trace with jax.profiler; the trace is written into the
            run folder.
    """

    progress: bool = True
    tensorboard: bool = False
    profile: int = 0


def train_command(args: Sequence[str]) -> Callable[[], None]:
    """Parses the command line of ``flax-linattn train`` and returns a function that trains."""
    name, *args = args
    task = get_task_options(name)
    start, others = flags.parse_known(Start(), args)
    if not start.resume and start.init is None:
        start = dataclasses.replace(start, preset=choose_preset(task, start.preset, others))
    config = _defaults(task, start)
    about = "Folder of the run, and what the run starts from."
    values = parse_training(f"train {name}", task, config, flags.groups(start, "Run", about), args)
    with flags.only(values):
        config = task.Config.of(**{name: values[name] for name in config.flat()})
    devices, output = flags.build(Devices, values), flags.build(Output, values)

    def run() -> None:
        with flags.only(values):
            _train(name, start, config, devices, output, args)

    return run


def choose_preset(task: type[TaskOptions], preset: str | None, others: Sequence[str]) -> str | None:
    """The preset of a new run: ``--preset``, or the one that belongs to ``--model``."""
    if preset is not None:
        return preset
    chosen, _ = flags.parse_known(_Model(), others)
    return task.usual_preset(chosen.model)


def parse_training(
    command: str,
    task: type[TaskOptions],
    config: Config,
    own: Iterable[flags.Group],
    args: Sequence[str],
) -> dict[str, Any]:
    """Values of the options of a command that trains runs of a task.

    Args:
        command: The command, with the name of the task.
        task: The task.
        config: The defaults of the task's options.
        own: Groups of the options of the command itself.
        args: The command line after the command.
    """
    own = tuple(own)
    return flags.parse(
        [
            *flags.groups(config),
            *flags.groups(Devices(), "Devices", "Devices and processes to train on."),
            *flags.groups(Output(), "Output", "What is reported during training."),
            *own,
        ],
        args,
        f"flax-linattn {command}",
        _description(task),
        [*task.Config.main_options, *(name for group in own for name in group.main)],
    )


def _train(
    name: str, start: Start, config: Config, devices: Devices, output: Output, args: Sequence[str]
) -> None:
    from flax_linattn import training
    from flax_linattn.tasks.train_run import train_report

    run_dir = start.run if start.run is not None else Path("runs") / config.name
    join_processes(devices)
    try:
        session = make_session(run_dir, start.resume, devices, output)
        report = train_report(get_task(name), config, session, init_run=start.init)
    except training.Interrupted:
        if training.is_main():
            given = [a for a in args if a != "--resume"]
            given += [] if start.run is not None else ["--run", str(run_dir)]
            command = ["flax-linattn", "train", name]
            print(shlex.join([*command, *given, "--resume"]), file=sys.stderr)
        raise
    if training.is_main():
        print_report(report)
        print(f"run folder: {run_dir}")


def _description(task: type[TaskOptions]) -> str:
    about = TASKS[task.name].about
    lines = [
        f"{about[0].upper()}{about[1:]}.",
        "",
        f"Mechanisms: {', '.join(mechanisms_by_direction(task.is_causal))}.",
    ]
    if task.presets:
        lines += ["", "Presets, whose options become the defaults:"]
        width = max(map(len, task.presets))
        for name, make in task.presets.items():
            usual = " (the default, unless --model names another model)"
            note = usual if name == task.default_preset else ""
            lines.append(f"  {name:<{width}}  {_first_line(make)}{note}.")
    return "\n".join(lines)


def _first_line(function: Any) -> str:
    # Presets that are made by a function have only the docstring that it sets.
    text = function.__doc__ or flags.docstring(function)
    return text.strip().partition("\n")[0].replace("``", "").rstrip(".")


def _defaults(task: type[TaskOptions], start: Start) -> Config:
    """The options of the run to resume or to start from, or the task's, and of the preset."""
    if start.resume and start.run is None:
        raise OptionError("resuming a run needs its folder; pass it.", "run")
    earlier = start.run if start.resume else start.init_run
    config = task.Config.of() if earlier is None else read_config(earlier, task)
    return apply_preset(task, config, start.preset)


def apply_preset(task: type[TaskOptions], config: Config, name: str | None) -> Config:
    """The options of a preset of the task, which keeps files that the config names."""
    if name is None:
        return config
    if not task.presets:
        raise OptionError(f"the task {task.name!r} has no presets; remove --preset.", "preset")
    check_choice(task.presets, preset=name)
    preset: Config = task.presets[name](config)
    return preset


def join_processes(devices: Devices) -> None:
    """Joins the other processes of the training, if there are any."""
    process = (devices.coordinator, devices.num_processes, devices.process_id)
    from flax_linattn.training import start_process

    if devices.distributed or process != (None, None, None):
        start_process(*process)


def make_session(run_dir: Path, resume: bool, devices: Devices, output: Output) -> Session:
    """Makes the session of a run, whose metrics are logged in its folder."""
    from flax_linattn import training

    trackers: list[training.Tracker] = [training.JsonLines(run_dir / "steps.jsonl")]
    if output.tensorboard:
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
        progress=output.progress or "lines",
        parallel=parallel,
        trackers=trackers,
        profile_steps=output.profile,
    )
