"""The command line itself: what it does not know, what it prints, how quickly it helps."""

import os
import re
import string
import subprocess
import sys
from unittest.mock import Mock

import pytest

import flax_linattn
from flax_linattn import bench, cli, registry, tasks
from flax_linattn.checks import OptionError
from flax_linattn.cli import flags, stream, train
from tests.tasks.commands import fail, one_line, succeed


def test_unknown_commands(capsys):
    assert "unknown command 'fly'. The commands are: train classify, " in fail(capsys, "fly")
    message = fail(capsys, "train", "--csv", "sales.csv")
    assert (
        "expected a task after 'train'. The commands are: train classify, train events, " in message
    )
    assert "train classify" in succeed(capsys, "--help")
    assert succeed(capsys, "--version").strip()
    assert cli.main([]) == 2


@pytest.mark.parametrize(
    ("args", "command"),
    [
        ("train forcast --help", "train forecast"),
        ("trian forecast --csv a.csv", "train forecast"),
        ("forecast --csv a.csv", "train forecast"),
        ("predcit runs/a --out a.csv", "predict"),
        ("data lst", "data list"),
    ],
)
def test_the_nearest_command_is_suggested(args, command, capsys):
    assert f"Did you mean {command!r}?" in fail(capsys, *args.split())


QUICK = [f"{name} --help" for name in cli._commands()]
QUICK += ["", "tune forecast --help", "train forecast --help-all", "train text --mechanism abc"]
QUICK += ["train events --epochs abc", "tune classify --preset abc", "stream nothing", "train abc"]


def test_help_and_refused_options_are_quick():
    """They import neither jax, flax nor pandas."""
    code = (
        "import sys; from flax_linattn import cli\n"
        f"for words in {QUICK}:\n"
        "    cli.main(words.split())\n"
        "    assert not {'jax', 'flax', 'optax', 'pandas', 'scipy'} & set(sys.modules), words"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_compiled_programs_are_kept_in_a_folder(tmp_path):
    folder = tmp_path / "compiled"
    code = (
        f"import flax_linattn.cli as c; c.main(['--compilation-cache={folder}', 'data', 'list']);"
        "import jax; jax.jit(lambda x: x + 1)(1.0)"
    )
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "true"}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    assert [*folder.iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="a function of glibc")
def test_memory_returns_after_a_long_compilation():
    code = (
        "import ctypes, types, jax; from flax_linattn import cli; calls = [];"
        "ctypes.CDLL = lambda name: types.SimpleNamespace(malloc_trim=calls.append);"
        "cli._return_compiler_memory();"
        "jax.jit(lambda x: sum(jax.numpy.sin(x * i) for i in range(999)))(1.0);"
        "raise SystemExit(not calls)"
    )
    # A program that is read from the cache is not compiled.
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("given", ["--compilation-cache={}", "--compilation-cache {}"])
def test_options_of_all_commands_may_stand_behind_one(given, tmp_path, monkeypatch, capsys):
    kept = []
    monkeypatch.setattr("jax.config.update", lambda *setting: kept.append(setting))
    words = given.format(tmp_path).split()
    assert cli.main(["data", "list", *words]) == 0
    assert cli.main(["data", *words, "list"]) == 0
    assert kept.count(("jax_compilation_cache_dir", str(tmp_path))) == 2
    assert cli.main(["data", "list", "--compilation-cache"]) == 2
    capsys.readouterr()
    assert cli.main(["train", "forecast", "--version"]) == 0
    assert capsys.readouterr().out.strip() == flax_linattn.__version__


@pytest.mark.parametrize("args", [[], [""], ["--version"], ["{file}"], ["train", "classify"]])
def test_a_folder_is_expected_for_compiled_programs(args, tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    assert cli.main(["--compilation-cache", *(arg.format(file=file) for arg in args)]) == 2
    assert "expected a folder after --compilation-cache" in capsys.readouterr().err


def test_one_note_says_that_a_folder_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jax.config.update", lambda *setting: None)
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=PermissionError("read-only")))
    assert cli.main(["data", "list", f"--compilation-cache={tmp_path}"]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert (
        note.startswith("note: the folder of --compilation-cache is not writable")
        and "read-only" in note
    )


def test_misspelt_flags_and_values(capsys):
    message = one_line(fail(capsys, "train", "classify", "--featurs", "8"))
    assert "Unrecognized options: --featurs" in message and "--features" in message
    for option, kind in (("--features", "an integer"), ("--clip-norm", "a number")):
        message = fail(capsys, "train", "classify", option, "many")
        assert message == f"error: expected {kind}, got 'many'. ({option})\n"
    message = one_line(fail(capsys, "train", "classify", "--pooling", "lats"))
    assert "expected one of mean, last, flatten, got 'lats'; did you mean 'last'?" in message
    assert "(--run)" in fail(capsys, "train", "classify", "--resume")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--mechanism", "aren"], "(--mechanism)"),
        (["--num-heads", "7"], "got --features 128 and --num-heads 7."),
        (["--rotary"], "(--rotary, --mechanism)"),
        (["--position-bias", "alibi"], "(--position-bias, --mechanism)"),
        (["--short-conv", "1"], "(--short-conv)"),
        (["--mechanism", "linformer"], "(--mechanism, --no-causal)"),
        (["--validation-fraction", "7"], "(--validation-fraction)"),
        (["--batch-size", "0"], "(--batch-size)"),
        (["--num-layers", "3", "--mechanism", "aaren", "softmax"], "(--mechanism, --num-layers)"),
    ],
)
def test_flags_of_what_is_refused(args, expected, capsys):
    assert fail(capsys, "train", "classify", *args).rstrip().endswith(expected)


def test_only_flags_that_a_command_has_are_named():
    with pytest.raises(OptionError) as caught, flags.only({"mechanism"}):
        raise OptionError("not so.", "causal", "mechanism")
    assert caught.value.options == ("mechanism",)


PARTS = {
    **{f"train {name}": tasks.get_task(name).Config.of() for name in tasks.list_tasks()},
    **{f"stream, {name}": tasks.get_task(name).StreamOptions() for name in tasks.list_tasks()},
    "start": train.Start(),
    "devices": train.Devices(),
    "output": train.Output(),
    "files": stream.Files(),
    "bench": bench.BenchOptions(),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_options_explain_themselves(part):
    """Each has a help text, which says what an empty default means; main options exist."""
    fields = [field for group in flags.groups(part) for field in group.fields]
    names = [field.name for field in fields]
    assert {*getattr(part, "main_options", ())} <= {*names} and len({*names}) == len(names)
    for field in fields:
        assert field.helptext and field.helptext[0] in string.ascii_uppercase + '`"', field.name
        assert field.helptext.endswith("."), field.name


def test_help_shows_main_options_and_help_all_shows_all(capsys):
    short = succeed(capsys, "train", "forecast", "--csv", "a.csv", "--help")
    full = succeed(capsys, "train", "forecast", "--help-all")
    assert all(f"  {flag} " in short for flag in ("--csv", "--horizon", "--mechanism", "--run"))
    assert "--beta2" not in short and "  --beta2 FLOAT" in full
    *_, last = short.splitlines()
    count = len({*re.findall(r"^\W{,4}(--[a-z][a-z0-9-]*)(?: |,)", full, re.MULTILINE)})
    assert last == f"'flax-linattn train forecast --help-all' lists all {count} options."
    for noise in ("(default: )", "(default: None)", "{None}", "Data.Table", "``"):
        assert noise not in full


def test_defaults_are_shown_once(capsys):
    full = one_line(succeed(capsys, "train", "forecast", "--help-all"))
    assert "--hidden-features INT Width of the feed-forward layers. (default: 128)" in full
    full = one_line(succeed(capsys, "train", "synthetic", "--help-all"))
    assert "--hidden-features INT Width of the feed-forward layers. Default: 4 C. " in full


@pytest.fixture
def own_registry():
    """Tasks that a test registers are gone after it."""
    before = dict(registry.TASKS)
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()
    registry.TASKS.clear()
    registry.TASKS.update(before)


@pytest.mark.usefixtures("own_registry")
def test_tasks_of_other_packages(monkeypatch, capsys):
    """By entry points; what cannot be loaded, or has another name, is told."""

    class Point:
        name, value, dist = "bins", "tests.tasks.bins:BinsTask", None

    points = [Point()]
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: points)
    assert tasks.get_task("bins").name == "bins"
    assert "train bins" in succeed(capsys, "--help")
    assert "has no presets" in fail(capsys, "train", "bins", "--preset", "tslib")
    with pytest.raises(ValueError, match="the task 'bins' already exists"):
        tasks.register_task("bins", "elsewhere:Task")
    with pytest.raises(ValueError, match="expected the task as 'module:class', got "):
        tasks.register_task("b", "a.B")
    tasks.register_task("gone", "no.such.module:Task")
    with pytest.raises(ValueError, match="'gone' cannot be loaded from no"):
        tasks.get_task("gone")
    tasks.register_task("other", "tests.tasks.bins:BinsTask")
    with pytest.raises(ValueError, match="must have the name 'other', got 'bins'"):
        tasks.get_task("other")


def test_options_of_one_name_in_two_parts_are_refused():
    import dataclasses

    from tests.tasks.bins import BinsConfig, BinsData

    @dataclasses.dataclass(frozen=True)
    class Twice(BinsData):
        features: int = 3

    @dataclasses.dataclass(frozen=True)
    class TwiceConfig(BinsConfig):
        data: Twice = Twice()

    TwiceConfig.__annotations__["data"] = Twice
    with pytest.raises(TypeError, match="TwiceConfig has two options named 'features'"):
        TwiceConfig.of(epochs=1)
