"""Columns that are known for the horizon: learned from, streamed, predicted; what is refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_linattn import cli, models, tasks
from flax_linattn.tasks.forecast import ForecastStream, Row
from flax_linattn.tasks.forecast.windows import compile_forecast
from tests.tasks.commands import fail, no_drawing, one_line, succeed

ROWS, INPUT, HORIZON = 400, 8, 4
OPTIONS = [
    *("--features", "8", "--num-layers", "1", "--num-heads", "2", "--hidden-features", "8"),
    *("--context-length", str(INPUT), "--horizon", str(HORIZON), "--patch-length", "4"),
    *("--epochs", "12", "--learning-rate", "0.01", "--parallel", "none", "--model", "patch"),
    *("--no-ridge", "--schedule", "halving", "--patience", "3"),
    *("--no-calendar", "--known-future", "price"),
]


def table() -> np.ndarray:
    """Sales that follow a price that nothing of the past tells."""
    rng = np.random.default_rng(0)
    price = rng.normal(size=ROWS)
    return np.stack([5 - 2 * price + 0.1 * rng.normal(size=ROWS), price], axis=1)


@pytest.fixture(scope="module")
def csv(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sales.csv"
    rows = "\n".join(f"{sales!r},{price!r}" for sales, price in table().tolist())
    path.write_text(f"sales,price\n{rows}\n")
    return path


@pytest.fixture(scope="module")
def run_dir(csv, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "known"
    with no_drawing():
        args = ["train", "forecast", "--csv", str(csv), "--run", str(folder), *OPTIONS]
        assert cli.main(args) == 0
    return folder


@pytest.mark.slow
def test_a_run_learns_what_the_past_does_not_tell(run_dir):
    """Without the price no forecast is much below the variance of the test rows.

    With it the level is still that of a window of 8, of whose prices the model knows the last: 1/8.
    """
    report = json.loads((run_dir / "test.json").read_text())
    assert report["targets"] == "sales"
    scale = tasks.load_run(run_dir).data_spec.standardizer.std[0]
    variance = np.var(table()[320:, 0]) / scale**2
    assert report["test_mse"] < 3 / 8 * variance < 0.9 * variance < report["ridge_mse"]
    assert tasks.evaluate_run(run_dir)["stream_max_error"] < 1e-4


def test_a_stream_and_a_prediction_are_the_parallel_forecast(run_dir, tmp_path, capsys):
    run, values = tasks.load_run(run_dir), table()
    scale = run.data_spec.standardizer
    seen = ((values - scale.mean) / scale.std)[: INPUT + HORIZON].astype(np.float32)
    expected = np.asarray(compile_forecast(run)({"values": seen[None]}))[0]
    expected = expected * scale.std[:1] + scale.mean[:1]
    stream = ForecastStream(run, context=0)
    lines = ["sales,price," + ",".join(f"price+{h}" for h in range(1, HORIZON + 1))]
    for t in range(INPUT):
        ahead = values[t + 1 : t + 1 + HORIZON, 1]
        found = stream.step(Row(None, np.concatenate([values[t], ahead])))
        lines.append(",".join(map(repr, [*values[t].tolist(), *ahead.tolist()])))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join(lines) + "\n")
    printed = succeed(capsys, "stream", str(run_dir), "--input", str(rows), "--context", "0")
    last = [float(cell) for cell in printed.splitlines()[-1].split(",")[2:]]
    np.testing.assert_allclose(last, expected[:, 0], rtol=1e-4)
    with pytest.raises(
        ValueError,
        match=r"2 values of the current step and 4 known future covariates \(4 steps of price",
    ):
        stream.step(Row(None, values[0]))

    table_ = ["sales,price", *(f"{s!r},{p!r}" for s, p in values[:INPUT].tolist())]
    file = tmp_path / "ahead.csv"
    file.write_text("\n".join(table_) + "\n")
    with pytest.raises(
        ValueError, match="expected 4 rows of the horizon at the end, with values of price"
    ):
        run.task.predict(run, file)
    table_ += [f",{price!r}" for price in values[INPUT : INPUT + HORIZON, 1].tolist()]
    file.write_text("\n".join(table_) + "\n")
    predicted = run.task.predict(run, file)
    np.testing.assert_allclose(predicted["sales"], expected[:, 0], rtol=1e-4)
    assert "note:" not in capsys.readouterr().err
    file.write_text("\n".join([*table_[:-1], ","]) + "\n")
    run.task.predict(run, file)
    note = "note: 'price' has missing values in the horizon, which are replaced by"
    assert capsys.readouterr().err == f"{note} the last known value\n"


def test_errors_of_predictions_name_no_option_of_training(run_dir, tmp_path, capsys):
    file = tmp_path / "other.csv"
    file.write_text("sales,cost\n1,2\n3,4\n")
    message = fail(capsys, "predict", str(run_dir), "--input", str(file), "--out", "x.csv")
    assert message.endswith("has sales, cost; choose one of these.\n")
    file.write_text("sales,price\n1,2\n3,4\n")
    message = fail(capsys, "predict", str(run_dir), "--input", str(file), "--out", "x.csv")
    assert message.endswith("(--input)\n") and f"{file}: expected 4 rows" in message


def test_what_a_row_of_a_stream_has_to_tell_is_said(run_dir, csv, capsys):
    """The rows that a run was trained on do not tell it."""
    hint = "needs price of the next 4 rows, as price+1 to price+4; name these columns in the"
    stream = ["stream", str(run_dir), "--input"]
    assert hint in one_line(fail(capsys, *stream, str(csv)))
    rows = csv.parent / "rows"
    for line in ("1.5,2", '{"sales": 1.5, "price": 2}'):
        rows.write_text(line + "\n")
        assert hint in one_line(fail(capsys, *stream, str(rows)))


def test_what_is_refused(csv, tmp_path, capsys):
    command = ["train", "forecast", "--csv", str(csv), "--run", str(tmp_path / "run")]
    command += ["--horizon", "4"]
    known = [*command, "--known-future", "price"]
    assert "is an option of the model 'patch', not of 'decoder'" in fail(
        capsys, *known, "--model", "decoder"
    )
    assert "expected targets that are not known future covariates" in fail(
        capsys, *known, "--model", "patch", "--targets", "price"
    )
    assert "unknown channel 'prize'" in fail(
        capsys, *command, "--model", "patch", "--known-future", "prize"
    )


def test_the_network_is_its_equation():
    """In float64: one hidden layer over the inputs of a step and those of now."""
    from flax import nnx

    added = models.KnownFuture(2, 3, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    added.contract.kernel[...] = rng.normal(size=(32, 3)).astype(np.float32)
    now, ahead = rng.normal(size=(5, 2)), rng.normal(size=(5, 4, 2))
    both = np.concatenate([ahead, np.repeat(now[:, None], 4, axis=1)], axis=-1)
    kernel, bias = (
        np.asarray(p[...], np.float64) for p in (added.expand.kernel, added.expand.bias)
    )
    h = both @ kernel + bias
    h = h * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    want = h @ np.asarray(added.contract.kernel[...], np.float64)
    found = jax.jit(lambda a, b: added(a, b))(now.astype(np.float32), ahead.astype(np.float32))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_further_columns_of_a_panel_are_noted_as_past_covariates(tmp_path):
    """The estimator takes them as known for the horizon; the command needs the option."""
    path = tmp_path / "sales.csv"
    rows = [f"{name},{t},{t % 5},{t % 7}" for name in "ab" for t in range(1, 120)]
    path.write_text("\n".join(["unique_id,ds,y,price", *rows, ""]))
    task = tasks.get_task("forecast")
    for options, expected in (({}, 1), ({"known_future": "price"}, 0), ({"targets": "y"}, 0)):
        sizes = {"split": "0.7/0.1/0.2", "context_length": 12, "horizon": 2, "model": "patch"}
        config = task.Config.of(csv=path, id_column="unique_id", **sizes, **options)
        panel = task.load(config)
        config, _ = task.choose(panel, config)
        notes = task.about_data(panel, config).notes
        assert sum("price" in note and "known_future" in note for note in notes) == expected
