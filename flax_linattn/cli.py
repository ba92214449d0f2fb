"""The ``flax-linattn`` command: train, evaluate, stream, data, bench.

Each command is a function whose parameters are its options. Heavy imports wait until a
command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

_HELP = """\
usage: flax-linattn COMMAND [OPTIONS]

Attention that trains in parallel and runs as a recurrent network.

commands:
  train classify   train a time-series classifier (JapaneseVowels, or your own files)
  train forecast   train a forecaster (ETTh1, or your own CSV file)
  evaluate RUN     test a run, and compare its stream with the parallel model
  stream RUN       class probabilities, or forecasts, after each observation of a stream
  data list        public data sets that there are readers for
  data info NAME   what one holds, its licence and files
  data fetch NAME  download its official files
  bench            speed and memory against named peers, and against stored ratios

'flax-linattn COMMAND --help' lists a command's options."""


INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        args: the command line without the program's name; default ``sys.argv[1:]``.

    Returns:
        The exit status: 0 done, 1 failed while running, 2 wrong use or input, 128 + n ended
        by signal n.

    Example:
        >>> main(["--version"])
        0.1.0
        0
    """
    args = list(sys.argv[1:] if args is None else args)
    if not args or args[0] in ("-h", "--help"):
        print(_HELP)
        return 0 if args else 2
    if args[0] == "--version":
        from flax_linattn import __version__

        print(__version__)
        return 0
    for length in (2, 1):
        command = _COMMANDS.get(" ".join(args[:length]))
        if command is not None:
            return _run(command, args[length:])
    if "-h" in args or "--help" in args:
        print(_HELP)
        return 0
    commands = [name for name in _COMMANDS if name.startswith(f"{args[0]} ")] or list(_COMMANDS)
    given = " ".join(args[:1] if args[1:2] and args[1].startswith("-") else args[:2])
    print(
        f"error: unknown command {given!r}; choose one of: {', '.join(commands)}.",
        file=sys.stderr,
    )
    return 2


def run() -> None:
    """The command as a process: ``main``, and an end at once where it was interrupted or failed.

    Threads that still compile would otherwise crash while Python takes itself down, and a process
    that failed would wait for the others of its run.
    """
    status = main()
    if status == INTERRUPTED or (status in (1, 2) and _is_one_of_several()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _is_one_of_several() -> bool:
    """Whether JAX would wait for other processes at the end of this one."""
    if "jax" not in sys.modules:
        return False
    import jax

    return jax.distributed.is_initialized() and jax.process_count() > 1


def _run(command: Callable[[list[str]], int], args: list[str]) -> int:
    from flax_linattn.training import LostProcessError, NonFiniteLossError

    try:
        return command(args)
    except BrokenPipeError:
        # The reader has gone. Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("FLAX_LINATTN_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (NonFiniteLossError, LostProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except SystemExit as exit:  # after --help, unusable options, or a signal while training
        return exit.code if isinstance(exit.code, int) else 2
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED


@dataclasses.dataclass(frozen=True)
class _How:
    """Where and how a run is trained: options that do not change what it computes."""

    run: Path | None = None
    """the run folder; default runs/ and a name of data and options."""
    resume: bool = False
    """go on where the run in that folder stopped; its options for data, model and training are
    the defaults, those for devices and trackers are not kept."""
    progress: bool = True
    """show a progress bar."""
    parallel: Literal["auto", "none", "jit", "pmap"] = "auto"
    """devices: jit over a mesh, pmap, or none; auto is jit where they divide the batch."""
    mesh: str | None = None
    """axes of the mesh, such as data=4,seq=2; default all devices along data."""
    shard_parameters: bool = False
    """split parameters and optimizer state over the devices, too (FSDP)."""
    accumulate: int = 1
    """take the gradient of a batch in so many parts."""
    tensorboard: bool = False
    """write event files for TensorBoard into the run folder (needs tensorboardX)."""
    profile: int = 0
    """trace so many steps with jax.profiler into the run folder."""
    distributed: bool = False
    """one of several processes, as SLURM, Open MPI or Cloud TPU start them."""
    coordinator: str | None = None
    """HOST:PORT of process 0, for processes that you start yourself."""
    num_processes: int | None = None
    """how many processes there are."""
    process_id: int | None = None
    """which of them this is, counted from 0."""

    def __post_init__(self) -> None:
        """Leaves the checks to the task's own options, which ``_train`` makes of these."""


def _train_classify(args: list[str]) -> int:
    from flax_linattn import ops
    from flax_linattn.tasks import classify, classify_config

    @dataclasses.dataclass(frozen=True)
    class TrainClassify(_How, classify_config.ClassifyConfig):
        pass

    about = "Trains a time-series classifier and tests the selected parameters."
    return _train(
        args,
        classify_config.ClassifyConfig,
        TrainClassify,
        classify.train_classifier,
        about,
        ops.list_mechanisms(),
    )


def _train_forecast(args: list[str]) -> int:
    from flax_linattn import ops
    from flax_linattn.tasks import forecast, forecast_config

    @dataclasses.dataclass(frozen=True)
    class TrainForecast(_How, forecast_config.ForecastConfig):
        pass

    about = "Trains a forecaster, selects on validation rows and tests it."
    causal = [n for n in ops.list_mechanisms() if ops.get_mechanism(n).capabilities.causal]
    return _train(
        args,
        forecast_config.ForecastConfig,
        TrainForecast,
        forecast.train_forecaster,
        about,
        causal,
    )


def _train(
    args: list[str],
    config_class: Any,
    options_class: Any,
    train: Callable[..., dict[str, Any]],
    about: str,
    mechanisms: Iterable[str],
) -> int:
    import tyro

    from flax_linattn import training

    command = f"flax-linattn train {config_class.task}"
    default = options_class()
    run = _value_of(args, "--run")
    if "--resume" in args and run is not None:
        default = options_class(**dataclasses.asdict(config_class.read(Path(run))))
    options = tyro.cli(
        options_class,
        args=args,
        default=default,
        prog=command,
        description=f"{about} Mechanisms: {', '.join(mechanisms)}.",
    )
    values = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(config_class)
    }
    try:
        config = config_class(**values)
    except ValueError as error:
        raise ValueError(_with_flags(str(error), values)) from None
    process = (options.coordinator, options.num_processes, options.process_id)
    if options.distributed or process != (None, None, None):
        with _naming_flags(options):
            training.start_process(*process)
    if options.resume and options.run is None:
        raise ValueError("--resume needs the run folder: --run RUN.")
    run_dir = options.run if options.run is not None else Path("runs") / config.name
    trackers: list[training.Tracker] = [training.JsonLines(run_dir / "steps.jsonl")]
    if options.tensorboard:
        trackers.append(training.TensorBoard(run_dir / "tensorboard"))
    try:
        with _naming_flags(options):
            report = train(
                config,
                run_dir,
                resume=options.resume,
                progress=options.progress,
                parallel=training.Parallel(
                    options.parallel, options.mesh, options.shard_parameters, options.accumulate
                ),
                trackers=trackers,
                profile_steps=options.profile,
            )
    except training.Interrupted:
        if training.is_main():
            given = [a for a in args if a != "--resume"]
            given += [] if options.run is not None else ["--run", str(run_dir)]
            print(shlex.join([*command.split(), *given, "--resume"]), file=sys.stderr)
        raise
    if training.is_main():
        _print_report(report)
        print(f"run folder: {run_dir}")
    return 0


def _evaluate(args: list[str]) -> int:
    import tyro

    from flax_linattn.tasks import evaluate

    _print_report(tyro.cli(evaluate.evaluate_run, args=args, prog="flax-linattn evaluate"))
    return 0


def _stream(args: list[str]) -> int:
    import tyro

    from flax_linattn.tasks import stream

    return tyro.cli(stream.stream_run, args=args, prog="flax-linattn stream")


def _data(name: str) -> Callable[[list[str]], int]:
    def run(args: list[str]) -> int:
        import tyro

        from flax_linattn.tasks import data_sets

        function = getattr(data_sets, f"{name}_data")
        return tyro.cli(function, args=args, prog=f"flax-linattn data {name}")

    return run


def _bench(args: list[str]) -> int:
    import tyro

    from flax_linattn import bench

    about = "Speed and memory of the mechanisms against named peers, and against stored ratios."
    options = tyro.cli(bench.BenchOptions, args=args, prog="flax-linattn bench", description=about)
    try:
        command = shlex.join(["flax-linattn", "bench", *args])
        with _naming_flags(options):
            return bench.run_bench(command=command, **vars(options))
    except KeyboardInterrupt:
        print("the same command goes on from here.", file=sys.stderr)
        raise


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train classify": _train_classify,
    "train forecast": _train_forecast,
    "evaluate": _evaluate,
    "stream": _stream,
    "data list": _data("list"),
    "data info": _data("info"),
    "data fetch": _data("fetch"),
    "bench": _bench,
}


def _value_of(args: list[str], flag: str) -> str | None:
    for i, arg in enumerate(args):
        if arg.startswith(flag + "="):
            return arg[len(flag) + 1 :]
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
    return None


FLAGS = {"run_dir": "run", "strategy": "parallel", "profile_steps": "profile"}
"""Options that the command line calls otherwise."""


@contextmanager
def _naming_flags(options: Any) -> Iterator[None]:
    """Adds the flags of the options that an error is about, if the command has them."""
    from flax_linattn.checks import OptionError

    try:
        yield
    except OptionError as error:
        names = [FLAGS.get(name, name) for name in error.options]
        flags = [f"--{name.replace('_', '-')}" for name in names if hasattr(options, name)]
        if not flags:
            raise
        raise ValueError(f"{error} ({', '.join(flags)})") from error


def _with_flags(message: str, names: Iterable[str]) -> str:
    """A message on options as the command line spells them.

    Example:
        >>> _with_flags("epochs must be at least 1.", ["epochs", "run"])
        '--epochs must be at least 1.'
        >>> _with_flags("give both train_file and test_file.", ["train_file", "test_file"])
        'give both --train-file and --test-file.'
    """
    for name in names:  # one of a single word may be just a word, but for the first one
        option = rf"\b{name}\b" if "_" in name else rf"^{name}\b"
        message = re.sub(option, "--" + name.replace("_", "-"), message)
    return message


def _print_report(report: dict[str, Any]) -> None:
    """Prints what is a line a name; the files hold the rest."""
    single = {name: value for name, value in report.items() if not isinstance(value, list)}
    width = max(map(len, single))
    for name, value in single.items():
        shown = f"{value:.6g}" if isinstance(value, float) else value
        print(f"{name:<{width}}  {shown}")
    if "classes" in report:
        _print_table(report["classes"])


def _print_table(rows: list[dict[str, Any]]) -> None:
    cells = [list(rows[0]), *(["" if v is None else str(v) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print()
    for line in cells:
        print("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
