"""The command line itself: what it does not know, what it prints, how quickly it helps."""

import subprocess
import sys

import pytest

import flax_linattn
from flax_linattn import cli, registry, tasks
from flax_linattn.checks import OptionError
from flax_linattn.cli import flags
from tests.tasks.commands import fail, one_line, succeed


def test_unknown_commands(capsys):
    assert "unknown command 'fly'; choose one of: train classify" in fail(capsys, "fly")
    message = fail(capsys, "train", "--csv", "sales.csv")
    assert "unknown command 'train'; choose one of: train classify, train events, " in message
    assert "train classify" in succeed(capsys, "--help")
    assert succeed(capsys, "--version").strip()
    assert cli.main([]) == 2


def test_help_is_quick():
    """It loads neither jax nor tyro."""
    code = (
        "import sys; from flax_linattn import cli; cli.main(['--help']); "
        "sys.exit(bool({'jax', 'flax', 'tyro'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_compiled_programs_are_kept_in_a_folder(tmp_path):
    folder = tmp_path / "compiled"
    code = (
        f"import flax_linattn.cli as c; s = c.main(['--compilation-cache={folder}', '--version']);"
        "import jax; jax.jit(lambda x: x + 1)(1.0); raise SystemExit(s)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert [*folder.iterdir()]


@pytest.mark.parametrize("given", ["--compilation-cache={}", "--compilation-cache {}"])
def test_options_of_all_commands_may_stand_behind_one(given, tmp_path, monkeypatch, capsys):
    kept = []
    monkeypatch.setattr("jax.config.update", lambda name, value: kept.append(value))
    words = given.format(tmp_path).split()
    assert cli.main(["data", "list", *words]) == 0
    assert cli.main(["data", *words, "list"]) == 0
    assert kept[::2] == [str(tmp_path)] * 2
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


def test_misspelt_flags_and_values(capsys):
    message = one_line(fail(capsys, "train", "classify", "--featurs", "8"))
    assert "Unrecognized options: --featurs" in message and "--features" in message
    message = one_line(fail(capsys, "train", "classify", "--features", "many"))
    assert "--features" in message
    assert "(--run)" in fail(capsys, "train", "classify", "--resume")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--mechanism", "aren"], "(--mechanism)"),
        (["--num-heads", "7"], "(--features, --num-heads)"),
        (["--rotary"], "(--rotary, --mechanism)"),
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
    with pytest.raises(ValueError, match="there is a task 'bins' already"):
        tasks.register_task("bins", "elsewhere:Task")
    with pytest.raises(ValueError, match="expected the task as 'module:class', got "):
        tasks.register_task("b", "a.B")
    tasks.register_task("gone", "no.such.module:Task")
    with pytest.raises(ValueError, match="'gone' cannot be loaded from no"):
        tasks.get_task("gone")
    tasks.register_task("other", "tests.tasks.bins:BinsTask")
    with pytest.raises(ValueError, match="has the name 'bins', expected 'other'"):
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
    with pytest.raises(TypeError, match="two parts of TwiceConfig have an option 'features'"):
        TwiceConfig.of(epochs=1)
