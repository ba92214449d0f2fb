"""The flax-linattn bench command, at tiny lengths."""

import copy
import json
import sys
from pathlib import Path

import jax
import pytest

from flax_linattn import cli

TINY = ["--rounds", "1", "--repeats", "1", "--lengths", "16", "--no-progress"]


@pytest.fixture(autouse=True)
def promotion():  # the peers are written as a user would
    with jax.numpy_dtype_promotion("standard"):
        yield


def bench(output: Path, *options: str) -> int:
    return cli.main(["bench", "--output", str(output), *TINY, *options])


def test_files_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert bench(tmp_path, "--only", "expressive", "--curve-lengths", "16") == 0
    assert "| softmax attention (XLA) |" in capsys.readouterr().out
    files = {path.name for path in tmp_path.iterdir()}
    lock = ".ratios.json.lock"  # hidden, and stays
    assert files == {"ratios.json", "ratios.md", "time.png", "memory.png", lock}
    results = json.loads((tmp_path / "ratios.json").read_text())
    assert results["finished"] and results["jax"] == jax.__version__
    assert {row["curve"] for row in results["rows"]} == {False, True}


def test_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against itself, ours made a thousand times slower, and a thousand times faster."""
    options = ("--only", "expressive", "--no-curves")
    assert bench(tmp_path, *options) == 0
    results = json.loads((tmp_path / "ratios.json").read_text())
    stored = tmp_path / "stored.json"
    for factor, status in ((1e3, 0), (1e-3, 1)):
        changed = copy.deepcopy(results)
        for row in changed["rows"]:
            row["results"]["ours"]["milliseconds"]["median"] *= factor
        stored.write_text(json.dumps(changed))
        assert bench(tmp_path, *options, "--against", str(stored)) == status
    assert "ratios fell by more than a factor of 1.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "nothing"], "no name of a comparison contains 'nothing'"),
        (["--rounds", "0"], "rounds must be at least 1"),
        (["--against", "missing.json"], "missing.json"),
    ],
)
def test_bad_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert bench(tmp_path, *options) == 2
    assert message in capsys.readouterr().err


def test_results_of_another_platform_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "stored.json"
    other.write_text(json.dumps({"platform": "gpu", "finished": True, "rows": []}))
    assert bench(tmp_path, "--against", str(other)) == 2
    assert "but this platform is" in capsys.readouterr().err
    other.write_text("[]")
    assert bench(tmp_path, "--against", str(other)) == 2
    assert "expected a ratios.json" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, stored = tmp_path / "ratios.json", tmp_path / "stored.json"
    unfinished = {"platform": jax.default_backend(), "finished": False, "rows": []}
    cases = [
        (own, {}, [], "choose another output folder. (--output)"),
        (stored, unfinished, [], "its run was interrupted"),
        (stored, unfinished | {"finished": True}, [], "has no results of"),
        (stored, unfinished, ["--factor", "0.9"], "must be greater than 1, got 0.9"),
    ]
    for path, results, options, message in cases:
        path.write_text(json.dumps(results))
        assert bench(tmp_path, "--against", str(path), *options) == 2
        assert message in capsys.readouterr().err


def test_without_matplotlib_figures_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert bench(tmp_path) == 2
    assert "pip install 'flax-linattn[plots]'" in capsys.readouterr().err
