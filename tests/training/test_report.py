"""What a run shows: its progress and its learning curve."""

import io
import json
import sys

import pytest
from rich.console import Console

from flax_linattn.terminal import escaped_output
from flax_linattn.training import learning_curve
from flax_linattn.training.progress import ProgressDisplay

LINE = {
    "epoch": 2, "step": 10, "monitor": "accuracy", "best_epoch": 2, "examples_per_second": 1234.5,
    "train_loss": 0.51234, "train_accuracy": 0.75,
    "validation_loss": 0.6, "validation_accuracy": None,
}  # fmt: skip


def write_lines(run_dir, count):
    lines = [
        {"epoch": e, "step": 5 * e, "monitor": "accuracy", "best_epoch": min(e, 4),
         "train_loss": 1 / e, "train_accuracy": 1 - 0.6 / e,
         "validation_loss": 1 / e + 0.02 * e, "validation_accuracy": 0.9 - 0.5 / e - 0.01 * e}
        for e in range(1, count + 1)
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run_dir / "metrics.jsonl").write_text(text)


def test_nothing_when_switched_off(capfd):
    with ProgressDisplay(False, 3, 15, 0) as display:
        display.step(6, 2)
        display.validation(LINE)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("shown", "terminal"), [(True, False), ("lines", False), ("lines", True)])
def test_a_line_for_each_epoch_without_a_bar(shown, terminal, monkeypatch, capfd):
    monkeypatch.setattr(Console, "is_terminal", terminal)
    with ProgressDisplay(shown, 3, 15, 0) as display:
        display.step(6, 2)
        display.metrics({"loss": 1.0}, {"examples_per_second": 10.0})
        display.validation(LINE)
    assert capfd.readouterr() == (
        "",
        "epoch 2/3  step 10  train loss 0.5123 accuracy 0.75  validation loss 0.6  "
        "1234 examples/s  best\n",
    )


def test_a_bar_on_a_terminal(monkeypatch, capfd):
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "100")
    with ProgressDisplay(True, 3, 15, 5) as display:
        display.step(6, 2)
        means = {"loss": 0.25, "accuracy": 0.5, "other": 3.0}
        display.metrics(means, {"examples_per_second": 10.0})
        display.validation(LINE)
    out, err = capfd.readouterr()
    assert out == ""
    for part in ("epoch 2/3", "6/15", "loss 0.25  accuracy 0.5  10 examples/s", "best"):
        assert part in err
    assert "other" not in err


def test_tokens_and_time_left(capfd):
    """Only where the objective says how many tokens an example has."""
    speed = {"tokens_per_second": 12345.4, "model_flops_utilization": 0.234}
    with ProgressDisplay("lines", 3, 15, 0, counts_tokens=True) as display:
        display.validation(LINE | speed, seconds_left=3723.4)
        display.validation(LINE | {"step": 15, "tokens_per_second": 9.0})
    with ProgressDisplay("lines", 3, 15, 0) as display:
        display.validation(LINE | speed, seconds_left=3723.4)
    first, last, _, others = capfd.readouterr().err.splitlines()
    assert "  12,345 tokens/s  MFU 23 %  1:02:03 left  best" in first
    assert last.startswith("epoch 2/3  step 15") and last.endswith("  9 tokens/s  best")
    assert others.endswith("  1234 examples/s  best")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_printed_above_a_bar_is_escaped(monkeypatch):
    """Control characters, markup and emoji of rich; the bar itself is drawn."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with escaped_output(), ProgressDisplay(True, 3, 15, 5) as display:
        print("a\x1b]0;owned\x07 \x9b2J \x1b[31m [red]b[/] :smile:", file=sys.stderr)
        print("c\x1b[2Jd", end="", file=sys.stderr)
        display.validation({**LINE, "monitor": "x\x1b[2J", "validation_x\x1b[2J": 0.5})
    text = terminal.getvalue()
    assert r"a\x1b]0;owned\x07 \x9b2J \x1b[31m [red]b[/] :smile:" in text
    assert r"c\x1b[2Jdepoch 2/3  step 10" in text and r"validation loss 0.6 x\x1b[2J 0.5" in text
    assert "\x1b[2K" in text and r"\x1b[2K" not in text


@pytest.mark.parametrize("count", [1, 6])
def test_learning_curve_is_drawn(tmp_path, count):
    write_lines(tmp_path, count)
    path = learning_curve(tmp_path)
    assert path == tmp_path / "learning_curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_learning_curve_needs_epochs(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no .*metrics\.jsonl"):
        learning_curve(tmp_path)
    write_lines(tmp_path, 0)
    with pytest.raises(ValueError, match="no epoch of the run has finished; resume"):
        learning_curve(tmp_path)


def test_without_matplotlib_a_line_says_so(tmp_path, monkeypatch, capsys):
    write_lines(tmp_path, 2)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert learning_curve(tmp_path) is None
    assert capsys.readouterr().err.count("flax-linattn[plots]") == 1
    assert not (tmp_path / "learning_curve.png").exists()


@pytest.mark.parametrize("text", ['{"epoch": 3', "[" * 100_000, "\xff", "5", '{"epoch": "3"}'])
def test_a_damaged_line_is_named(tmp_path, text):
    write_lines(tmp_path, 2)
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(text.encode("latin-1") + b"\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl:3: expected the JSON of a validation"):
        learning_curve(tmp_path)
