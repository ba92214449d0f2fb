"""The ``flax-linattn`` command: train, evaluate, backtest, predict, stream and their helpers.

Its commands follow from the registry of tasks. Only this package knows flags: errors name options,
and their flags are added here. Heavy imports wait until a command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import ctypes
import difflib
import functools
import importlib
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from flax_linattn import compilation
from flax_linattn.registry import TASKS, list_tasks
from flax_linattn.terminal import (
    INTERRUPTED,
    escaped_output,
    exit_on_interrupt,
    interruptible,
)

CACHE = "--compilation-cache"
"""An option of all commands, which may stand before a command or anywhere after it."""
HELP = ("-h", "--help", "--help-all")
"""Words that ask for help: for the main options, or for all options of a command."""


class _Command(NamedTuple):
    """A command of the command line.

    Attributes:
        operands: Positional arguments.
        about: One-line description.
        target: "module:function", imported when the command runs.
        uses: Module to import after the command line is parsed, before Ctrl-C raises
            ``KeyboardInterrupt``, which modules in C would turn into other errors.
        is_bound: If True, the function's parameters declare the options. If False, the function
            parses the command line after the command's name, and returns a function that does the
            work, and may return an exit status.
    """

    operands: str
    about: str
    target: str
    uses: str
    is_bound: bool = True


_COMMANDS = {
    "tune": _Command(
        "TASK",
        "search for the options of a task by training trials",
        f"{__name__}.tune:tune_command",
        "flax_linattn.tasks.study",
        is_bound=False,
    ),
    "evaluate": _Command(
        "RUN",
        "evaluate a run on test data, and check its stream against the parallel model",
        f"{__name__}.runs:evaluate",
        "flax_linattn.tasks.evaluate",
    ),
    "predict": _Command(
        "RUN",
        "write the predictions of a run, such as forecasts or classes, to a file",
        f"{__name__}.runs:predict",
        "flax_linattn.tasks.predict",
    ),
    "backtest": _Command(
        "RUN",
        "backtest a forecaster over later rows, with or without retraining",
        f"{__name__}.runs:backtest_command",
        "flax_linattn.tasks.run",
        is_bound=False,
    ),
    "stream": _Command(
        "RUN",
        "print predictions after each observation of a stream",
        f"{__name__}.stream:stream_command",
        "flax_linattn.tasks.stream",
        is_bound=False,
    ),
    "generate": _Command(
        "RUN",
        "continue a prompt with a language model",
        f"{__name__}.generate:generate",
        "flax_linattn.tasks.run",
    ),
    "export": _Command(
        "RUN",
        "write a run as one file that streams without this library",
        f"{__name__}.export:export_command",
        "flax_linattn.tasks.export",
        is_bound=False,
    ),
    "serve": _Command(
        "RUN_OR_BUNDLE",
        "serve the stream of a run or a bundle over HTTP and WebSocket",
        f"{__name__}.serve:serve_command",
        "flax_linattn.tasks.export",
        is_bound=False,
    ),
    "state": _Command(
        "FILE",
        "show the contents of a state file that a stream saved",
        f"{__name__}.stream:show_state",
        "flax_linattn.inference.saved",
    ),
    "rollout": _Command(
        "RUN",
        "play episodes with an agent in a Gymnasium environment",
        f"{__name__}.rollout:rollout",
        "flax_linattn.tasks.run",
    ),
    "data list": _Command(
        "",
        "list the public data sets with built-in readers",
        f"{__name__}.data:list_data",
        "flax_linattn.tasks.task",
    ),
    "data info": _Command(
        "NAME",
        "show the contents, license and files of a data set",
        f"{__name__}.data:info_data",
        "flax_linattn.tasks.task",
    ),
    "data fetch": _Command(
        "NAME",
        "download the official files of a data set",
        f"{__name__}.data:fetch_data",
        "flax_linattn.tasks.task",
    ),
    "bench": _Command(
        "",
        "benchmark speed and memory against other implementations and stored results",
        f"{__name__}:bench_command",
        "flax_linattn.bench.run",
        is_bound=False,
    ),
}


def _commands() -> dict[str, _Command]:
    """All commands by name, one for training each task among them."""
    target = f"{__name__}.train:train_command"
    of_tasks = {
        f"train {name}": _Command(
            "", TASKS[name].about, target, "flax_linattn.tasks.train_run", is_bound=False
        )
        for name in list_tasks()
    }
    return of_tasks | _COMMANDS


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command of the command line; escapes control characters in what it prints.

    Args:
        args: The command line without the program's name; default ``sys.argv[1:]``.

    Returns:
        The exit status: 0 done, 1 failed while running, 2 wrong use or input, 128 + n ended
        by signal n.

    Example:
        >>> main(["--version"])
        0.1.0
        0
    """
    with escaped_output():
        return _dispatch(list(sys.argv[1:] if args is None else args))


def _dispatch(args: list[str]) -> int:
    programs = None
    place = next((at for at, word in enumerate(args) if word.split("=")[0] == CACHE), None)
    if place is not None:
        try:
            programs, rest = _read_programs(args[place:], leads=place == 0)
            args = [*args[:place], *rest]
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    if not args or args[0] in HELP:
        print(_help())
        return 0 if args else 2
    if "--version" in args:
        from flax_linattn import __version__

        print(__version__)
        return 0
    commands = _commands()
    for length in (2, 1):
        name = " ".join(args[:length])
        if name in commands:
            return _run(commands[name], name, args, programs)
    choices = [name for name in commands if name.startswith(f"{args[0]} ")]
    if choices and args[1:2] and args[1] in HELP:
        print(_help())
        return 0
    given = " ".join(args[:1] if args[1:2] and args[1].startswith("-") else args[:2])
    is_incomplete = bool(choices) and given == args[0]
    near = _nearest(given, choices or [*commands]) or _nearest(args[0], [*commands])
    hint = f" Did you mean {near!r}?" if near and not is_incomplete else ""
    reason = f"expected a task after {given!r}." if is_incomplete else f"unknown command {given!r}."
    print(
        f"error: {reason}{hint} The commands are: {', '.join(choices or commands)}.",
        file=sys.stderr,
    )
    return 2


def _nearest(given: str, commands: Sequence[str]) -> str | None:
    """The command that was probably meant by a misspelled one."""
    return next(iter(difflib.get_close_matches(given, commands, 1)), None)


def _read_programs(args: Sequence[str], leads: bool) -> tuple[str, list[str]]:
    """Makes the folder of compiled programs, and returns it and the arguments after it."""
    name, equals, folder = args[0].partition("=")
    rest = list(args[1:])
    if not equals:
        folder = rest.pop(0) if rest else ""
    forgotten = leads and not equals and folder in {command.split()[0] for command in _commands()}
    if not folder or folder.startswith("-") or forgotten:
        raise ValueError(f"expected a folder after {name}; write {name} FOLDER.")
    path = os.path.abspath(os.path.expanduser(folder))
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"expected a folder after {name}, but {folder} is a file.")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder after {name}: {error}.") from None
    return path, rest


def _set_programs(folder: str) -> None:
    """Sets the folder of compiled programs; prints a note if it is not writable."""
    try:
        compilation.check_writable(folder)
    except OSError as error:
        print(
            f"note: the folder of {CACHE} is not writable, so new compiled programs are not saved "
            f"there: {error}",
            file=sys.stderr,
        )
    compilation.set_compilation_cache(folder)


def run() -> None:
    """Runs the command as a process, which exits at once if it was interrupted or failed.

    Otherwise, threads that still compile could crash during Python's shutdown, and a failed process
    would wait for the other processes of its run.
    """
    exit_on_interrupt()
    status = main()
    if status == INTERRUPTED or (status in (1, 2) and _is_multi_process()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _is_multi_process() -> bool:
    """Whether JAX would wait for other processes when this process ends."""
    if "jax" not in sys.modules:
        return False
    import jax

    return jax.distributed.is_initialized() and jax.process_count() > 1


def _run(command: _Command, name: str, args: list[str], programs: str | None) -> int:
    from flax_linattn.checks import OptionError

    try:
        words = args[len(name.split()) if command.is_bound else 1 :]
        module, _, function = command.target.partition(":")
        read: Any = getattr(importlib.import_module(module), function)
        if command.is_bound:
            from flax_linattn.cli import flags

            read = functools.partial(flags.bind, read, name)
        work = read(words)
        # Only now, so that help and most refused options wait neither for JAX nor for data; and
        # not in work(), where Ctrl-C does not end the process at once (see exit_on_interrupt).
        importlib.import_module(command.uses)
        _return_compiler_memory()
        # JAX compiles a program again if its cache entry cannot be read, which needs no warning.
        entry = "Error (reading|writing) persistent compilation cache entry"
        warnings.filterwarnings("ignore", entry, UserWarning)
        if programs is not None:
            _set_programs(programs)
        # bench measures how long programs compile
        cache = nullcontext() if name == "bench" else compilation.cached_programs()
        with interruptible(), cache:
            return work() or 0
    except BrokenPipeError:
        # The reader has gone. Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("FLAX_LINATTN_DEBUG"):
            raise
        text = str(error)
        if isinstance(error, OptionError):
            text = spell_flags(text, error.options)
            values, words = error.values or {}, re.findall(r"--[\w-]+", text)
            unnamed = [n for n in error.options if n in values or _flag(n, True) not in words]
            text += name_flags(unnamed, error.values)
        print(f"error: {text}", file=sys.stderr)
        return 2
    except SystemExit as exit:  # after --help, unusable options, or a signal while training
        return exit.code if isinstance(exit.code, int) else 2
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED
    except RuntimeError as error:
        from flax_linattn.training import LostProcessError, NonFiniteLossError

        if not isinstance(error, (NonFiniteLossError, LostProcessError)):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1


@functools.cache
def _return_compiler_memory() -> None:
    """Returns memory to the system after each compilation, from now on.

    XLA's compiler takes hundreds of megabytes for a training step, and glibc's ``malloc`` would
    keep them, so that the process would need them in addition to what comes later.
    """
    import jax

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        return

    def after(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED and duration_secs > 0.1:  # a trim takes milliseconds
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(after)


_COMPILED = "/jax/core/compile/backend_compile_duration"
"""Event of JAX after a compilation."""

FLAGS = {
    "run_dir": "run",
    "init_run": "from",
    "strategy": "parallel",
    "profile_steps": "profile",
    "env_id": "env",
    "path": "out",
}
"""Options whose flags have another name."""


def name_flags(options: Sequence[str], values: Mapping[str, bool | str] | None = None) -> str:
    """The flags of options that an error names, with the values that would do.

    Example:
        >>> name_flags(["batch_size", "strategy"])
        ' (--batch-size, --parallel)'
        >>> name_flags(["causal", "header"], {"causal": False, "header": "yes|no"})
        ' (--no-causal, --header yes|no)'
    """
    flags = [_flag(name, (values or {}).get(name, True)) for name in options]
    return f" ({', '.join(flags)})" if flags else ""


def spell_flags(message: str, options: Sequence[str]) -> str:
    """An error's advice in the words of the command line: arguments as flags.

    Example:
        >>> spell_flags("set day_first=True or time_column=('Date', 'Time')", ["day_first"])
        "set --day-first or time_column=('Date', 'Time')"
        >>> spell_flags("join them, with time_column=('Date', 'Time')", ["time_column"])
        'join them, with --time-column Date Time'
        >>> spell_flags("expected runs=3, got 4", ["runs"])
        'expected --runs 3, got 4'
        >>> spell_flags("read others only, with channels=...", ["channels"])
        'read others only, with --channels'
    """

    def spell(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in options:
            return match[0]
        if value in ("True", "False", "..."):
            return _flag(name, value != "False")
        return _flag(name, shlex.join(re.findall("'([^']*)'", value) or [value]))

    return _ARGUMENT.sub(spell, message)


_ARGUMENT = re.compile(r"\b([a-z]\w*)=(True|False|\.\.\.|'[^']*'|\([^()]*\)|-?\d+(?:\.\d+)?)")
"""An argument in Python's words, as the advice of an error names it."""


def _flag(name: str, value: bool | str) -> str:
    flag = FLAGS.get(name, name).replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {value}"


def bench_command(args: Sequence[str]) -> Callable[[], int]:
    """Parses the command line of ``flax-linattn bench`` and returns a function that runs it."""
    from flax_linattn.bench.options import BenchOptions
    from flax_linattn.cli import flags

    about = "Benchmarks speed and memory against other implementations and stored results."
    options = flags.parse(flags.groups(BenchOptions()), args, "flax-linattn bench", about)

    def run() -> int:
        from flax_linattn.bench import run_bench

        try:
            return run_bench(command=shlex.join(["flax-linattn", "bench", *args]), **options)
        except KeyboardInterrupt:
            print("run the same command again to continue.", file=sys.stderr)
            raise

    return run


def _help() -> str:
    commands = _commands().items()
    lines = {f"{name} {one.operands}".rstrip(): one.about for name, one in commands}
    width = max(map(len, lines))
    listed = "\n".join(f"  {name:<{width}}  {about}" for name, about in lines.items())
    return f"""\
usage: flax-linattn [--compilation-cache FOLDER] COMMAND [OPTIONS]

Attention that trains in parallel and runs as a recurrent network.

commands:
{listed}

with any command:
  {f"{CACHE} FOLDER":<{width}}  cache compiled programs here, not in the user's cache folder

'flax-linattn COMMAND --help' shows the main options of a command, '--help-all' all of them."""
