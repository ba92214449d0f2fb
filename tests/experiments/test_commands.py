"""What all experiments have: a command with the same flags, and a page of stored results."""

import dataclasses
import json

import pytest

import experiments
from experiments import again, extra_line, report
from experiments.experiment import data_folder
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


def test_the_same_numbers_keep_the_date_of_their_first_measurement(experiment):
    fixed = [one for one in report.all_experiments() if getattr(one, "is_deterministic", False)]
    for one in fixed:
        stored = json.loads(one.stored("").read_text())
        assert one.head("", "")["first_measured"] == stored["first_measured"]
    assert len(fixed) == 8
    new = dataclasses.replace(experiment, is_deterministic=True).head("cpu", "")
    assert new["first_measured"] == (new["commit_date"] or new["date"])
    assert "first_measured" not in experiment.head("cpu", "")


def test_what_is_interrupted_says_how_it_goes_on(experiment, tmp_path, capsys):
    def interrupted(size, journal):
        raise KeyboardInterrupt

    stopped = dataclasses.replace(experiment, measure=interrupted)
    with pytest.raises(SystemExit) as end:
        stopped.main(["--output", str(tmp_path)])
    assert end.value.code == 130
    assert "the same command goes on from here" in capsys.readouterr().err


def test_one_row_is_computed_again_beside_the_stored_one(experiment, tmp_path, capsys):
    experiment.main(["--output", str(tmp_path)])
    stored = (tmp_path / "squares-cpu.json").read_text()
    (tmp_path / "squares-cpu.json").write_text(stored.replace('"square": 1', '"square": 2'))
    capsys.readouterr()
    experiment.main(["--output", str(tmp_path), "--again", "n 0"])
    assert "2 of 2 values are equal. Times (0) are not" in capsys.readouterr().out
    experiment.main(["--output", str(tmp_path), "--again", "n 1"])
    out = capsys.readouterr().out
    assert "| square | 2 | 1 |\n| n | 1 | 1 |" in out and "1 of 2" in out and "5.0e-01" in out
    assert '"square": 2' in (tmp_path / "squares-cpu.json").read_text()
    for row, message in (
        ("n 7", "matches no stored row"),
        ("n", "matches no"),
        ("n 1, x", "matches no"),
    ):
        with pytest.raises(SystemExit):
            experiment.main(["--output", str(tmp_path), "--again", row])
        assert message in capsys.readouterr().err


def test_a_page_names_the_cheapest_row_and_its_cost():
    rows = [{"data": "a, b", "seed": s, "seconds": 60.0 * (2 - s)} for s in (0, 1)]
    text = again.usage("python -m x", rows, "plots")
    assert text.startswith("`python -m x --again 'data a, b, seed 1'`")
    assert "this row took 1.0 minutes, all 2 rows took 3.0 minutes; install `.[plots]`" in text
    names = [", ".join(again.name_parts(row)) for row in rows]
    assert again.choose(names, "seed 1") == again.choose(names, "data a, b, seed 1") == 1
    with pytest.raises(ValueError, match="matches 2 stored rows"):
        again.choose(names, "data a, b")


def test_times_are_not_compared():
    both = [{"seconds": s, "milliseconds": {"median": s}, "time_nll": 1.0} for s in (1.0, 2.0)]
    assert "1 of 1 values are equal. Times (2) are not compared" in again.compare(*both)


def test_a_missing_package_is_one_line():
    assert "needs matplotlib: pip install 'flax-linattn[plots]'" in extra_line("matplotlib")
    assert "flax-linattn[kernels]" in extra_line("fla")
    assert extra_line("tslearn").endswith("pip install tslearn")


def test_a_module_of_no_extra_keeps_its_traceback(capsys):
    for name in ("experiments", "experiments.nowhere", "matplotlib.nowhere", "nowhere"):
        experiments._explain(ModuleNotFoundError, ModuleNotFoundError(name=name), None)
        assert capsys.readouterr().err.startswith("ModuleNotFoundError")


def test_every_experiment_names_its_own_module():
    for experiment in report.all_experiments():
        assert (experiment.folder / f"{experiment.name}.py").is_file()
        for scale in experiment.sizes:
            assert experiment.module in experiment.command(scale)


class Visits(again.RepeatJournal):
    """A journal that returns stored rows, and counts which."""

    def __init__(self, path, rows):
        super().__init__(path, rows, {})
        self.visited = set()

    def row(self, key, measure):
        row = super().row(key, measure)
        self.visited |= {n for n, known in enumerate(self._known) if known is row}
        return row


STARTS_PROCESSES = "efficiency.cold_starts"
PARTLY_AVAILABLE = ("classification.uea_ucr", "forecasting.patch")
"""They need the files of an archive, or PyTorch."""
SLOW = ("forecasting.patch", "synthetic.recall")
MEASURED = [
    pytest.param(
        one,
        scale,
        id=f"{one.short_name} {scale}".strip(),
        marks=[pytest.mark.slow] * (one.short_name in SLOW),
    )
    for one in report.all_experiments()
    for scale in one.sizes
    if isinstance(one, Measured) and one.stored(scale).is_file()
    if one.short_name != STARTS_PROCESSES
]


@pytest.mark.parametrize(("experiment", "scale"), MEASURED)
def test_stored_rows_are_found_by_the_command(experiment, scale):
    """Or ``--again`` could not repeat them, and an interrupted command would not resume."""
    rows = experiment.rows(scale)
    journal = Visits(experiment.stored(scale), rows)
    try:
        experiment.measure(experiment.sizes[scale], journal)
    except SystemExit as message:
        pytest.skip(str(message))
    is_available = data_folder() is not None or not experiment.needs_data
    if not is_available or experiment.short_name in PARTLY_AVAILABLE:
        pytest.skip(f"{len(journal.visited)} of {len(rows)} rows have their data here")
    assert len(journal.visited) == len(rows)
