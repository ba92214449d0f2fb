"""What all experiments have: a command with the same flags, and a page of stored results."""

import dataclasses
import json

import pytest

from experiments import report
from experiments.measured import Measured


@dataclasses.dataclass(frozen=True)
class Size:
    numbers: int = 2


@pytest.fixture
def experiment():
    def measure(size, journal):
        for n in range(size.numbers):
            journal.row({"n": n}, lambda n=n: {"square": n * n})

    return Measured(
        module="experiments.none.squares",
        about="no paper",
        sizes={"cpu": Size(), "paper": Size(3)},
        measure=measure,
        table=lambda rows, size: ", ".join(str(row["square"]) for row in rows),
        left_out={"cpu": "most", "paper": "nothing"},
    )


def test_a_scale_is_measured_and_its_page_printed(experiment, tmp_path, capsys):
    experiment.main(["--scale", "paper", "--output", str(tmp_path)])
    out = capsys.readouterr().out
    assert out == (tmp_path / "squares-paper.md").read_text() and out.startswith("0, 1, 4\n")
    assert "squares --scale paper`" in out
    assert json.loads((tmp_path / "squares-paper.json").read_text())["finished"]


def test_a_page_is_written_anew(experiment, tmp_path, capsys):
    experiment.main(["--output", str(tmp_path)])
    (tmp_path / "squares-cpu.md").unlink()
    stored = (tmp_path / "squares-cpu.json").read_bytes()
    experiment.main(["--output", str(tmp_path), "--render"])
    assert (tmp_path / "squares-cpu.md").is_file()
    assert (tmp_path / "squares-cpu.json").read_bytes() == stored


def test_what_is_interrupted_says_how_it_goes_on(experiment, tmp_path, capsys):
    def interrupted(size, journal):
        raise KeyboardInterrupt

    stopped = dataclasses.replace(experiment, measure=interrupted)
    with pytest.raises(SystemExit) as end:
        stopped.main(["--output", str(tmp_path)])
    assert end.value.code == 130
    assert "the same command goes on from here" in capsys.readouterr().err


def test_every_experiment_names_its_own_module():
    for experiment in report.all_experiments():
        assert (experiment.folder / f"{experiment.name}.py").is_file()
        for scale in experiment.sizes:
            assert experiment.module in experiment.command(scale)
