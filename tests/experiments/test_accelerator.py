"""All measurements of accelerators, without one: pieces, limits of time, lowering."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from experiments.accelerator import attention, checks, floor, lowering, summary
from experiments.accelerator import run as runs
from experiments.accelerator.__main__ import main, parse
from experiments.accelerator.journal import OutOfTimeError, TimedJournal
from experiments.accelerator.machine import extra
from experiments.accelerator.pieces import PAPER, PIECES, SMALL, Piece, piece
from experiments.accelerator.small_sizes import SMALL_SIZES
from experiments.accelerator.states import DONE, FAILED, MORE, SKIPPED, Outcome
from experiments.accelerator.supervise import MORE_TO_DO, last_words, status, supervise
from experiments.measured import Measured
from flax_linattn.bench import compile_program, observe_compilations, provenance


@pytest.fixture(autouse=True)
def promotion() -> Iterator[None]:
    """That of users: programs of experiments are plain."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def at_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of changed code are not gone on with."""
    monkeypatch.setattr(sys.modules[provenance.__module__], "commit", lambda: "abc")


# -- pieces ------------------------------------------------------------------------------


def test_pieces_have_a_size_for_accelerators_and_a_smallest() -> None:
    names = [one.name for one in PIECES]
    assert len(set(names)) == len(names) and set(names) == set(SMALL_SIZES)
    for one in PIECES:
        for scale in (PAPER, SMALL):
            experiment = one.experiment(scale)
            assert list(experiment.sizes) == list(experiment.left_out) == [scale]
        assert one.experiment(PAPER).sizes != one.experiment(SMALL).sizes


def test_every_experiment_with_the_papers_size_is_a_piece() -> None:
    from experiments import report

    measured = (one for one in report.all_experiments() if isinstance(one, Measured))
    modules = {one.module for one in measured if PAPER in one.sizes}
    assert modules <= {one.module for one in PIECES}


@pytest.mark.slow
def test_a_piece_stops_between_rows_and_goes_on(tmp_path: Path, at_a_commit: None) -> None:
    one = piece("floor")
    first = runs.run(one, SMALL, tmp_path, 0.0, progress=False)
    assert first == Outcome(MORE, "0 rows so far")
    path = one.stored(tmp_path, SMALL)
    experiment = one.experiment(SMALL)

    class StopError(Exception):
        pass

    class Interrupted(TimedJournal):
        def row(self, key: Any, measure: Any) -> Any:
            if len(self.rows) == 2:
                raise StopError
            return super().row(key, measure)

    head = experiment.head(SMALL, "python -m experiments.accelerator --only floor --smallest")
    head |= {"libraries": runs.libraries()}
    with pytest.raises(StopError):
        experiment.fill(SMALL, Interrupted(path, head, 60.0, progress=False))
    before = json.loads(path.read_text())["rows"]
    assert len(before) == 2
    assert runs.run(one, SMALL, tmp_path, 60.0, progress=False) == Outcome(DONE, "4 rows")
    results = json.loads(path.read_text())
    assert results["finished"] and results["rows"][:2] == before
    assert results["libraries"]["jaxlib"] and results["libraries"]["platform"]
    page = path.with_suffix(".md").read_text()
    assert "| bfloat16 |" in page and "--only floor --smallest`, commit abc" in page
    written = summary.write(tmp_path, PIECES, SMALL, {"floor": Outcome(DONE)})
    assert "| [floor](floor-smallest.md) | done |  | 4 | abc, " in written
    assert "| streams | not run |" in written and "| jaxlib |" in written


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    outcome = runs.run(piece("flash_linear_attention"), SMALL, tmp_path, 60.0, progress=False)
    assert outcome.state == SKIPPED and "need a GPU" in outcome.why


# -- the time of a call --------------------------------------------------------------------


class Clock:
    """A time that stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float) -> Callable[[], dict[str, Any]]:
        def measure() -> dict[str, Any]:
            self.now += seconds
            return {}

        return measure


def test_no_row_begins_that_would_not_fit(tmp_path: Path) -> None:
    clock = Clock()
    journal = TimedJournal(tmp_path / "rows.json", {}, 10.0, progress=False, clock=clock)
    journal.row({"n": 0}, clock.taking(6.0))
    with pytest.raises(OutOfTimeError):
        journal.row({"n": 1}, clock.taking(1.0))
    journal.row({"n": 0}, clock.taking(1.0))
    assert clock.now == 6.0
    again = TimedJournal(tmp_path / "rows.json", {}, 10.0, progress=False, clock=clock)
    again.row({"n": 0}, clock.taking(1.0))
    again.row({"n": 1}, clock.taking(1.0))
    assert clock.now == 7.0


class Machine:
    """Pieces of some rows, of which a call does as many as the time allows."""

    def __init__(self, folder: Path, rows: dict[str, list[float]]) -> None:
        self.folder, self.rows, self.clock = folder, rows, Clock()
        self.began: list[str] = []

    def start(self, one: Piece, soft: float, hard: float) -> Outcome:
        self.began.append(one.name)
        ends, path = self.clock.now + hard, self.stored(one)
        journal = TimedJournal(path, {}, soft, progress=False, clock=self.clock)
        for n, seconds in enumerate(self.rows[one.name]):

            def measure(seconds: float = seconds) -> dict[str, Any]:
                if self.clock.now + seconds > ends:
                    self.clock.now = ends
                    raise subprocess.TimeoutExpired("", hard)
                self.clock.now += seconds
                return {}

            try:
                journal.row({"n": n}, measure)
            except OutOfTimeError:
                return Outcome(MORE)
        journal.finish()
        return Outcome(DONE)

    def stored(self, one: Piece) -> Path:
        return self.folder / f"{one.name}.json"

    def call(self, seconds: float = 100.0) -> tuple[int, dict[str, Outcome]]:
        pieces = [Piece(f"x.{name}") for name in self.rows]
        began = self.clock.now
        found = supervise(pieces, self.stored, self.start, seconds, began, self.clock)
        assert self.clock.now - began <= seconds
        return status(found), found


def test_calls_go_on_until_all_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, {"a": [30.0, 30.0], "b": [20.0, 40.0], "c": [1.0]})
    assert machine.call()[0] == MORE_TO_DO
    assert machine.began == ["a", "b", "c"]
    assert machine.clock.now == 81.0  # another row as long as the last would not have fitted
    code, found = machine.call()
    assert code == 0 and {one.state for one in found.values()} == {DONE}
    assert machine.clock.now == 121.0 and machine.began[3:] == ["b"]
    assert "[2 of 3] b: done" in capsys.readouterr().err
    assert machine.call()[0] == 0 and machine.clock.now == 121.0


def test_a_row_that_is_cut_off_costs_itself(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"a": [10.0, 95.0], "b": [1.0]})
    code, found = machine.call()
    assert code == MORE_TO_DO and found["a"] == Outcome(MORE, "1 rows so far")
    assert machine.call()[0] == MORE_TO_DO and machine.began == ["a", "a"]
    assert machine.call()[0] == 0


def test_a_row_longer_than_a_call_fails_its_piece_and_others_go_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"a": [200.0], "b": [1.0]})
    code, found = machine.call()
    assert code == MORE_TO_DO and found["a"].state == FAILED
    assert "give more by --minutes" in found["a"].why
    machine = Machine(tmp_path, {"b": [1.0], "a": [200.0]})
    assert machine.call(500.0)[0] == 0


def test_a_failed_check_stays_failed(tmp_path: Path) -> None:
    one = Piece("x.checks", failures=lambda rows: [row["why"] for row in rows if row["why"]])

    def start(one: Piece, soft: float, hard: float) -> Outcome:
        raise AssertionError("it is done")

    path = tmp_path / "checks.json"
    path.write_text(json.dumps({"finished": True, "rows": [{"why": ""}, {"why": "too far"}]}))
    found = supervise([one], lambda one: path, start, 100.0, 0.0, Clock())
    assert status(found) == 1 and "the first: too far" in found["checks"].why


def test_the_last_words_say_how_it_goes_on() -> None:
    outcomes = {"a": Outcome(DONE), "b": Outcome(SKIPPED, "pip install b"), "c": Outcome(MORE)}
    assert last_words(outcomes, "python -m x").splitlines() == [
        "1 done, 1 more to do, 1 skipped.",
        "skipped: b: pip install b",
        "there is more to do (exit status 75); go on by: python -m x",
    ]
    assert status(outcomes | {"d": Outcome(FAILED)}) == MORE_TO_DO
    assert status({"d": Outcome(FAILED), "a": Outcome(DONE)}) == 1


# -- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--minutes", "0"], "--minutes must be above 0"), (["--only", "no"], "no piece is called")],
)
def test_bad_options_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.slow
def test_a_cpu_is_refused_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path)]) == 2
    assert "--smallest runs every piece here" in capsys.readouterr().err
    assert main(["--list", "--output", str(tmp_path)]) == 0
    assert "floor: more to do, 0 rows so far" in capsys.readouterr().out


@pytest.mark.slow
def test_every_piece_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--smallest", "--minutes", "120", "--output", str(tmp_path)]) == 0
    page = (tmp_path / "cpu" / "summary.md").read_text()
    for one in PIECES:
        done = f"[{one.name}]({one.name}-smallest.md) | done |" in page
        assert done or f"| {one.name} | skipped |" in page


def test_the_machine_says_which_jax_it_wants() -> None:
    table = "| NVIDIA-SMI 575.57    Driver Version: 575.57    CUDA Version: {}  |"
    assert extra(table.format("12.9"), {}, []) == "cuda12"
    assert extra(table.format("13.0"), {}, []) == "cuda13"
    assert extra(None, {"TPU_NAME": "local"}, []) == extra(None, {}, ["accel0"]) == "tpu"
    assert extra(None, {}, []) == extra("no devices", {}, []) == ""


# -- checks, and shares of the floor ------------------------------------------------------------


def test_a_check_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.contract.tolerances import assert_close

    def check(error: float) -> None:
        assert_close(jnp.float32(1 + error), jnp.float32(1), jnp.float32, "y")

    found = checks.run({"float32": lambda: check(1e-6), "bfloat16": lambda: check(1e-3)})["dtypes"]
    assert not found["float32"]["failed"] and found["float32"]["compared"] == 1
    assert found["bfloat16"]["failed"].startswith("y: error 0.001")
    rows = [{"mechanism": "m", "check": "c", "dtypes": found}]
    assert checks.failures(rows) == [f"m, c, bfloat16: {found['bfloat16']['failed']}"]
    assert "| m | c | 9.5e-07 / 1e-05 | **fails** |" in checks.table(rows, checks.Size())


def test_checks_are_the_contracts_in_every_form_and_direction() -> None:
    cases = checks.contract().cases
    mechanism = cases.MADE["aaren"]
    names = [name for name, _ in checks.make_checks(mechanism, checks.Size())]
    assert names[:3] == [
        "reference = equation, causal",
        "reference = equation, not causal",
        "steps = reference",
    ]
    of_forms = [
        f"{form}, {way}" for way in ("causal", "not causal") for form in cases.FORMS_OF[mechanism]
    ]
    assert names[3:] == of_forms


@pytest.mark.slow
def test_the_checks_of_a_mechanism_hold(tmp_path: Path) -> None:
    experiment = piece("checks").experiment(PAPER)
    size = checks.Size(mechanisms=("aaren",), forms=("chunked",))
    experiment = dataclasses.replace(experiment, sizes={PAPER: size})
    experiment.collect(PAPER, tmp_path, progress=False)
    assert " 0 failed." in experiment.render(PAPER, tmp_path)


def test_shares_of_the_floor() -> None:
    rates = {floor.COPY: 1e9, floor.FLOAT32: 1e12, floor.BFLOAT16: 1e13}
    result = {"total_bytes": 3e6, "temporary_bytes": 1e6, "milliseconds": {"median": 4.0}}
    assert attention.bandwidth_fraction(result, rates) == 0.5
    # Two products of 8 heads of 64 channels over half of 1000 x 1000: 1.024 GFLOP each way.
    share = attention.softmax_fraction("softmax attention (XLA)", result, 1000, "forward", rates)
    assert share == pytest.approx(2 * 2 * 8 * 64 * 1000**2 / 2 / 1e12 / 4e-3)
    cudnn = "softmax attention (cuDNN, bfloat16)"
    assert attention.softmax_fraction(cudnn, result, 1000, "forward", rates) < share


# -- lowering ----------------------------------------------------------------------------------


def test_what_does_not_lower_says_why() -> None:
    def refused(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos)

    seen: list[dict[str, str]] = []
    with observe_compilations(lambda traced: seen.append(lowering.lower(traced))):
        compile_program(jnp.sin, [jnp.ones(3)])
        compile_program(refused, [jnp.ones(3)])
    compile_program(jnp.sin, [jnp.ones(3)])
    assert seen[0] == {"cuda": lowering.LOWERS, "tpu": lowering.LOWERS}
    assert seen[1]["cuda"] == lowering.LOWERS and "Error" in seen[1]["tpu"] and len(seen) == 2


def test_programs_of_the_floor_lower() -> None:
    programs = lowering.lower_piece("floor")["programs"]
    assert len(programs) == 4
    assert not lowering.failures([{"piece": "floor", "programs": programs}])


@pytest.mark.slow
@pytest.mark.parametrize("name", lowering.Size().pieces)
def test_all_programs_lower(name: str) -> None:
    found = lowering.lower_piece(name)
    assert found["programs"] or "not_run" in found
    assert not lowering.failures([{"piece": name, **found}])
