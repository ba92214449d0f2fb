"""Baselines against independent computations, and verdicts on models."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import data, tasks
from flax_linattn.models.closed_form import RIDGE_STRENGTHS
from flax_linattn.tasks.baselines import Baselines
from flax_linattn.tasks.classify import baselines
from flax_linattn.tasks.classify.metrics import averages, count
from flax_linattn.tasks.forecast import baselines as forecasts
from flax_linattn.tasks.forecast import ridge as ridges
from flax_linattn.tasks.forecast.evaluate import evaluate_baselines

MSE = Baselines("mse", ("naive", "seasonal_naive", "ridge"), title="MSE")


def untrained(task, **options):
    """A run without a model, as training has it, and its test batches."""
    kind = tasks.get_task(task)
    config = kind.Config.of(**options).resolve()
    data_ = kind.load(config)
    data_spec = kind.describe(data_, config)
    run = tasks.Run(kind, config, data_spec, None, data_)
    return run, kind.batches(data_, config, data_spec, 1).test


class TestVerdict:
    @pytest.mark.parametrize(
        ("values", "better", "sentence"),
        [
            (
                {"test_mse": 3.0, "naive_mse": 2.0, "ridge_mse": 1.0, "seasonal_naive_mse": 1.5},
                ["ridge", "seasonal_naive", "naive"],
                "3 baselines are better: MSE of ridge 1, seasonal naive 1.5, naive 2, this model 3",
            ),
            (
                {"test_mse": 0.58230, "naive_mse": 2.0, "ridge_mse": 0.58174},
                ["ridge"],
                "the ridge baseline is better: MSE 0.5817, this model 0.5823",
            ),
            (
                {"test_mse": 0.34201, "naive_mse": 2.0, "ridge_mse": 0.34204},
                [],
                "this model is better than every baseline: MSE 0.34201, ridge 0.34204",
            ),
            (  # numbers that differ by rounding, as of a forecast that is the ridge
                {"test_mse": 0.0342001336394, "naive_mse": 2.0, "ridge_mse": 0.0342001335406},
                [],
                "this model is as good as the best baseline, ridge: MSE 0.0342",
            ),
            (
                {"test_mse": float("nan"), "naive_mse": 7.0, "ridge_mse": 1.0},
                ["ridge", "naive"],
                "2 baselines are better: MSE of ridge 1, naive 7, this model nan",
            ),
            *(
                ({"test_mse": 5.0, "ridge_mse": theirs}, [], "")
                for theirs in (None, float("nan"), float("inf"))
            ),
        ],
    )
    def test_names_the_better_ones_the_best_first(self, values, better, sentence):
        assert MSE.beaten_by(values) == better
        assert MSE.verdict(values) == sentence

    def test_larger_may_be_better(self):
        accuracy = Baselines("accuracy", ("nearest_neighbor",), larger_is_better=True)
        values = {"test_accuracy": 0.24, "nearest_neighbor_accuracy": 0.332}
        sentence = "the nearest neighbor baseline is better: accuracy 0.332, this model 0.24"
        assert accuracy.verdict(values) == sentence

    def test_a_baseline_fitted_to_a_subset_reports_its_size(self):
        values = {"test_mse": 3.0, "ridge_mse": 1.0, "naive_mse": 2.0, "num_train": 5890}
        some = {**values, "ridge_learned_from": 20}
        told = "2 baselines are better: MSE of ridge 1 (learned from 20 of 5,890), naive 2, this"
        assert MSE.verdict(some).startswith(told)
        assert "learned" not in MSE.verdict({**values, "ridge_learned_from": 5890})

    def test_of_validation_data_too_where_a_report_tells(self):
        chosen = dataclasses.replace(MSE, selected=("ridge",))
        values = {"test_mse": 3.0, "naive_mse": 4.0, "ridge_mse": 5.0}
        values |= {"validation_mse": 2.0, "naive_validation_mse": 2.5, "ridge_validation_mse": 1.0}
        assert chosen.beaten_by(values, validation=True) == ["ridge"]
        assert chosen.verdict(values) == (
            "on test this model is better than every baseline: MSE 3, naive 4; on validation "
            "(optimistic, because these rows selected the model and the ridge) the ridge baseline "
            "is better: MSE 1, this model 2"
        )
        values = tasks.Report(values, baselines=chosen).all_values
        assert (values["beaten_by"], values["beaten_by_on_validation"]) == ([], ["ridge"])
        del values["ridge_validation_mse"]
        assert "because these rows selected the model) this model is" in chosen.verdict(values)

    def test_a_report_without_baselines_says_nothing(self):
        report = tasks.Report({"test_mse": 1.0})
        assert report.all_values == {"test_mse": 1.0} and report.verdict == ""


def test_averages_over_classes():
    """Worked out by hand; class 3 is neither there nor predicted, class 2 only predicted."""
    counts = count(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 2]), 4)
    found = averages(counts)
    assert counts.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0], [0] * 4, [0] * 4]
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    # precision and recall 1 and 2/3, then 1/2 and 1/2, then 0 and none
    assert found["macro_f1"] == pytest.approx((4 / 5 + 1 / 2 + 0) / 3)


def left_out(x, targets, strength):
    """The mean square error of each row by a ridge fitted to the others, by least squares."""
    errors = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        errors.append(targets[i] - augmented(x[others], targets[others], strength, x[i : i + 1])[0])
    return np.mean(np.square(errors))


def augmented(x, targets, strength, new):
    """Ridge with an intercept that is not shrunk, as least squares with rows for the penalty."""
    penalty = np.sqrt(strength) * np.eye(x.shape[1])
    left = np.block([[x, np.ones((len(x), 1))], [penalty, np.zeros((x.shape[1], 1))]])
    right = np.concatenate([targets, np.zeros((x.shape[1], targets.shape[1]))])
    solution = np.linalg.lstsq(left, right, rcond=None)[0]
    return new @ solution[:-1] + solution[-1]


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(baselines, "MAX_BLOCK_NUMBERS", 30)


@pytest.mark.usefixtures("blocks")
class TestClassifiers:
    @pytest.mark.parametrize("features", [7, 40])
    def test_the_ridge_is_least_squares_whose_strength_leaves_one_out(self, features):
        """Fewer features than examples, and more."""
        rng = np.random.default_rng(features)
        labels = rng.integers(0, 3, 24).astype(np.int32)
        x = rng.normal(size=(24, features)) + labels[:, None] * np.linspace(0, 1, features)
        new = rng.normal(size=(50, features)) + 1
        targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
        centered = x - x.mean(axis=0)
        unit = np.sum(np.square(centered)) / min(24, features)
        # At most as many eigenvalues as examples less one are not 0.
        errors = [left_out(x, targets, s * unit) for s in RIDGE_STRENGTHS]
        best = unit * RIDGE_STRENGTHS[np.argmin(errors)]
        want = np.argmax(augmented(x, targets, best, new), axis=1)
        np.testing.assert_array_equal(baselines.ridge(x, labels, new), want)
        assert 0 < np.argmin(errors) < len(errors) - 1 and len(set(want)) > 1

    def test_the_nearest_neighbor_is_the_nearest(self):
        rng = np.random.default_rng(1)
        x, new = rng.normal(size=(2, 33, 5)).astype(np.float32)
        labels = np.arange(33, dtype=np.int32)
        distances = np.linalg.norm(new[:, None] - x[None], axis=-1)
        found = baselines.nearest_neighbor(x, labels, new)
        np.testing.assert_array_equal(found, distances.argmin(axis=1))
        np.testing.assert_array_equal(baselines.nearest_neighbor(x, labels, x), labels)

    def test_features_that_never_change_leave_the_most_frequent_class(self):
        labels = np.array([4, 2, 4], np.int32)
        found = baselines.ridge(np.ones((3, 2)), labels, np.ones((2, 2)))
        assert found.tolist() == [4, 4]


def vectors(lengths, num_steps, seed=0):
    rng = np.random.default_rng(seed)
    series = [rng.normal(size=(length, 2)) + length for length in lengths]
    values, _ = data.pad(series, num_steps)
    return baselines.Vectors(values, (np.asarray(lengths) % 2).astype(np.int32))


def test_test_sequences_may_be_longer_and_labels_come_in_their_order():
    train, test = vectors([3, 4, 5, 4] * 5, 5), vectors([3, 6, 4, 3, 5], 6)
    found = baselines.predict_vectors(train, test)
    assert found["nearest_neighbor"].labels.tolist() == [1, 1, 0, 1, 1]
    assert all(len(of.labels) == 5 and of.num_fitted == 20 for of in found.values())


def test_of_many_examples_some_are_learned_from(monkeypatch):
    train, test = vectors([3, 4] * 50, 5), vectors([3, 4], 5)
    # Two test sequences of 10 numbers; 10 * 10 a row.
    monkeypatch.setattr(baselines, "MAX_PRODUCTS", 400)
    found = baselines.predict_vectors(train, test)
    assert [found[name].num_fitted for name in ("nearest_neighbor", "ridge")] == [20, 4]
    monkeypatch.setattr(baselines, "MAX_GRAM_ROWS", 6)  # below the features, 10
    assert baselines.max_ridge_examples(10) == 6
    monkeypatch.setattr(baselines, "MAX_RIDGE_NUMBERS", 50)
    assert baselines.max_ridge_examples(10) == 5
    assert baselines._spread_evenly(10, 4).tolist() == [0, 2, 5, 7]
    assert baselines._spread_evenly(10, 0).tolist() == [0]


@pytest.mark.parametrize(("kept", "there"), [(39, False), (40, True)])
def test_a_ridge_of_fewer_than_two_examples_a_class_is_none(kept, there, monkeypatch, capsys):
    """Of sequences of 10 numbers and two classes; all that there are is enough, however few."""
    monkeypatch.setattr(baselines, "MAX_RIDGE_NUMBERS", kept)
    found = baselines.predict_vectors(vectors([3, 4] * 50, 5), vectors([3, 4], 5))
    assert ("ridge" in found) == there and "nearest_neighbor" in found
    note = "note: the ridge baseline is skipped, because it could be fitted on 3 of 100 sequences"
    assert capsys.readouterr().err.startswith(note) != there
    found = baselines.predict_vectors(vectors([3, 4, 3], 5), vectors([3, 4], 5))
    assert found["ridge"].num_fitted == 3


def test_distances_of_all_pairs_are_never_kept():
    many = np.arange(20_000, dtype=np.float32)[:, None]
    tracemalloc.start()
    found = baselines.nearest_neighbor(many, np.arange(len(many)), many[::14] + 0.2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(found, np.arange(len(many))[::14])
    assert peak < len(many) * len(many[::14]) * 8


def test_every_sequence_of_the_training_file_counts():
    """Those that select the parameters, too: an independent count on Japanese Vowels."""
    run, test = untrained("classify")
    report = run.task.test_baselines(run, test)
    series = [run.data_spec.standardizer.apply(part.series) for part in run.data.files]
    x, new = (data.pad(part, 29)[0].reshape(len(part), -1).astype(float) for part in series)
    labels, truth = (part.labels for part in run.data.files)
    squares = np.sum(np.square(x), axis=1)
    nearest = labels[np.argmin(squares - 2 * new @ x.T, axis=1)]
    assert report["nearest_neighbor_learned_from"] == report["ridge_learned_from"] == 270
    assert report["num_train"] == 270
    assert report["nearest_neighbor_accuracy"] == pytest.approx(np.mean(nearest == truth))
    assert report["ridge_accuracy"] > 0.97
    assert report["constant_accuracy"] == pytest.approx(88 / 370)
    assert report["constant_balanced_accuracy"] == pytest.approx(1 / 9)


def test_a_run_from_its_folder_reads_its_training_data_again(tmp_path, capsys):
    """And says so where they are gone or others: what learns nothing stays."""
    header = "@timestamps false\n@dimensions 1\n@classLabel true a b\n@data\n"
    paths = tmp_path / "T_TRAIN.ts", tmp_path / "T_TEST.ts"
    for path, count_ in zip(paths, (9, 4), strict=True):
        lines = [f"{i % 2},?,{i}.5:{'ab'[i % 2]}" for i in range(count_)]
        path.write_text(header.replace("@dim", "@missing true\n@dim") + "\n".join(lines) + "\n")
    run, test = untrained("classify", train_file=paths[0], test_file=paths[1])
    in_training = run.task.test_baselines(run, test)
    stored = run._replace(data=None)
    assert run.task.test_baselines(stored, test) == in_training
    assert capsys.readouterr().err == ""
    text = paths[0].read_text()
    for change in (lambda: paths[0].write_text(text.replace("8.5", "9.5")), paths[0].unlink):
        change()
        left = run.task.test_baselines(stored, test)
        assert set(left) == {f"constant_{n}" for n in averages(np.eye(2))}
        assert (
            "note: trained baselines are skipped, because the training data"
            in capsys.readouterr().err
        )


def nlinear(values, train, validation, length, horizon):
    """The map by least squares with rows for the penalty, window by window."""

    def windows(rows):
        first = max(rows.start - length, 0)
        found = [
            channel[i : i + length + horizon] - channel[i + length - 1]
            for channel in values.T.astype(float)
            for i in range(first, rows.stop - length - horizon + 1)
        ]
        return np.stack(found)[:, :length], np.stack(found)[:, length:]

    (x, y), (held, truth) = windows(train), windows(validation)
    unit = np.sum(np.square(x)) / length
    candidates = []
    for strength in ridges.STRENGTHS * unit:
        left = np.concatenate([x, np.sqrt(strength) * np.eye(length)])
        right = np.concatenate([y, np.zeros((length, horizon))])
        candidates.append(np.linalg.lstsq(left, right, rcond=None)[0])
    errors = [np.mean(np.square(held @ kernel - truth)) for kernel in candidates]
    return candidates[int(np.argmin(errors))], np.argmin(errors)


def noisy_waves(rows=150):
    rng = np.random.default_rng(2)
    waves = np.sin(np.arange(rows)[:, None] / [2.0, 5.0, 9.0])
    return (waves + 0.5 * rng.normal(size=(rows, 3))).astype(np.float32)


class TestForecasts:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_the_ridge_is_least_squares_whose_strength_validation_rows_choose(self, channels):
        values = noisy_waves()[:, :channels]
        args = values, range(90), range(90, 120), 12, 5
        want, best = nlinear(*args)
        found = ridges.fit_ridge(args[0], [args[1]], [args[2]], *args[3:])
        np.testing.assert_allclose(found.kernel, want, atol=1e-9)
        assert 0 < best < len(ridges.STRENGTHS) - 1
        assert found.num_windows == 90 - 12 - 5 + 1
        seen = values[None, 100:112]
        by_hand = (seen[0] - seen[0, -1]).T @ want + seen[0, -1][:, None]
        np.testing.assert_allclose(found(seen)[0], by_hand.T, atol=1e-6)

    def test_a_level_is_passed_on_and_what_never_changes_stays(self):
        ridge = ridges.fit_ridge(noisy_waves(), [range(90)], [range(90, 120)], 12, 5)
        seen = noisy_waves()[None, :12].astype(float)
        np.testing.assert_allclose(ridge(seen + 7), ridge(seen) + 7, atol=1e-9)
        still = ridges.fit_ridge(np.ones((60, 1)), [range(40)], [range(40, 60)], 6, 2)
        assert still(np.full((1, 6, 1), 4.0)).ravel().tolist() == [4.0, 4.0]


@pytest.mark.parametrize("rows", [2, 4])
def test_rows_without_a_window_are_named(rows):
    message = (
        r"^expected a window of context_length=12 and horizon=5 in rows 90 to \d+, got too few rows"
    )
    with pytest.raises(ValueError, match=message):
        ridges.fit_ridge(noisy_waves(), [range(90)], [range(90, 90 + rows)], 12, 5)
    few = ridges.fit_ridge(noisy_waves()[:, :0], [range(90)], [range(90, 120)], 12, 5)
    assert few.num_windows == 90 - 12 - 5 + 1


def test_a_fault_of_the_fit_is_no_missing_file(monkeypatch, capsys):
    """It is raised: a note would tell that the data cannot be read."""
    run, windows = untrained("forecast")

    def diverge(*args):
        raise np.linalg.LinAlgError("eigenvalues did not converge")

    monkeypatch.setattr(forecasts, "fit_ridge", diverge)
    with pytest.raises(np.linalg.LinAlgError):
        run.task.test_baselines(run, windows)
    assert capsys.readouterr().err == ""


def towards(values, train, validation, shared, strength):
    """Each channel's map by least squares, with rows for its distance from the shared one."""
    length, horizon = shared.shape
    kernels = []
    for channel in values.T.astype(float):
        windows = np.stack([
            channel[i : i + length + horizon] - channel[i + length - 1]
            for i in range(train.stop - length - horizon + 1)
        ])  # fmt: skip
        x, y = windows[:, :length], windows[:, length:]
        penalty = np.sqrt(strength * np.sum(np.square(x)) / length)
        left = np.concatenate([x, penalty * np.eye(length)])
        kernels.append(np.linalg.lstsq(left, np.concatenate([y, penalty * shared]), rcond=None)[0])
    return np.stack(kernels)


def test_maps_of_channels_are_least_squares_drawn_towards_the_shared_one(monkeypatch):
    """Their strengths are those of the least error on validation rows."""
    values, train, validation = noisy_waves(), range(90), range(90, 120)
    args = values, [train], [validation], 12, 5
    shared, found = (ridges.fit_ridge(*args, maps=maps) for maps in ("shared", "channel"))
    assert shared.maps == "shared" and found.maps == "channel" and found.kernel.shape == (3, 12, 5)
    every = [
        towards(values, train, validation, shared.kernel, strength)
        for strength in ridges.CHANNEL_STRENGTHS
    ]
    held = np.stack([values[i : i + 17] for i in range(78, 104)]).astype(float)
    held -= held[:, 11:12]
    errors = np.array([
        np.sum(np.square(np.einsum("nlc,clh->nhc", held[:, :12], kernel) - held[:, 12:]), (0, 1))
        for kernel in every
    ])  # fmt: skip
    best = errors.argmin(axis=0)
    want = np.stack([every[which][channel] for channel, which in enumerate(best)])
    np.testing.assert_allclose(found.kernel, want, atol=1e-9)
    assert found.validation_error == pytest.approx(errors.min(axis=0).sum() / held[:, 12:].size)
    by_hand = np.einsum("nlc,clh->nhc", held[:, :12], want)
    np.testing.assert_allclose(found(held[:, :12]), by_hand, atol=1e-9)


def test_validation_rows_choose_between_one_map_and_one_for_each_channel(monkeypatch):
    """Equal channels share it; others do not, unless that costs more than the limits allow."""
    waves, validation = noisy_waves(600), [range(400, 600)]
    opposite = waves[:, [0, 0]] * [1, -1]  # a linear map does not tell them apart
    assert ridges.fit_ridge(opposite, [range(400)], validation, 12, 5, maps="auto").maps == "shared"
    args = waves, [range(400)], validation, 12, 5
    found, shared = (ridges.fit_ridge(*args, maps=maps) for maps in ("auto", "shared"))
    assert found.maps == "channel" and found.validation_error < 0.99 * shared.validation_error
    one = ridges.fit_ridge(waves[:, :1], *args[1:], maps="channel")
    assert one.maps == "shared"
    for limit in ("MAX_PRODUCTS", "MAX_NUMBERS"):
        with monkeypatch.context() as patched:
            patched.setattr(ridges, limit, 100)
            np.testing.assert_array_equal(
                ridges.fit_ridge(*args, maps="auto").kernel, shared.kernel
            )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 20), st.floats(-1e4, 1e4))
def test_products_of_windows_are_those_of_their_matrix(seed, width, more, level):
    """From first row and changes; far from 0 they count from the first value."""
    values = np.random.default_rng(seed).normal(size=width + more).cumsum() + level
    windows = np.lib.stride_tricks.sliding_window_view(values - values[0], width)
    found = ridges._window_products(values, width)
    np.testing.assert_allclose(found, windows.T @ windows, atol=1e-9, rtol=1e-9)


def test_the_last_rows_of_a_long_input_are_those_of_the_same_windows(monkeypatch):
    monkeypatch.setattr(ridges, "MAX_INPUT", 4)
    values = noisy_waves()
    long = ridges.fit_ridge(values, [range(90)], [range(90, 120)], 12, 5)
    short = ridges.fit_ridge(values[8:], [range(82)], [range(82, 112)], 4, 5)
    np.testing.assert_allclose(long.kernel, short.kernel, atol=1e-12)


def test_a_run_of_targets_and_holes(tmp_path, capsys):
    """One target by its own past: learned as the model sees it, tested on what is known."""
    rows = noisy_waves(120).astype(float)
    rows[[20, 21, 105]] = np.nan
    csv = tmp_path / "holes.csv"
    lines = [",".join("" if np.isnan(v) else f"{v:.6f}" for v in row) for row in rows]
    csv.write_text("a,b,c\n" + "\n".join(lines) + "\n")
    options = {"csv": csv, "targets": "b", "context_length": 8, "horizon": 3, "split": "80/20/20"}
    run, windows = untrained("forecast", **options)
    ridge = forecasts.fitted_ridge(run)
    report = evaluate_baselines(run, windows)
    filled = windows.arrays["values"][:, 1:2]
    want, _ = nlinear(filled.astype(float), range(80), range(80, 100), 8, 3)
    errors = []
    for start in range(100, 118):
        past = filled[start - 8 : start, 0].astype(float)
        known = windows.arrays["known"][start : start + 3, 1]
        truth = np.where(known, filled[start : start + 3, 0], np.nan)
        errors.append((past - past[-1]) @ want + past[-1] - truth)
    assert report["ridge_mse"] == pytest.approx(np.nanmean(np.square(errors)))
    assert report["ridge_mae"] == pytest.approx(np.nanmean(np.abs(errors)))
    assert ridge.num_windows == 80 - 8 - 3 + 1 and report["ridge_maps"] == "shared"
    std = run.data_spec.standardizer.std[1]
    assert report["ridge_original_rmse"] == pytest.approx(report["ridge_rmse"] * std)

    stored = run._replace(data=None)
    np.testing.assert_array_equal(forecasts.fitted_ridge(stored).kernel, ridge.kernel)
    changed = dataclasses.replace(run.data_spec, checksum="of others")
    with pytest.raises(
        ValueError,
        match=r"the data of the run \(.*holes.*, now 120 rows\) have changed since training",
    ):
        forecasts.fitted_ridge(stored._replace(data_spec=changed))


def test_ett_as_it_is_known():
    """96 rows from 96: linear maps of one window are published between 0.38 and 0.40."""
    run, windows = untrained("forecast")
    report = evaluate_baselines(run, windows)
    assert report["ridge_maps"] == "channel"
    assert report["ridge_mse"] == pytest.approx(0.383, abs=2e-3)
    assert report["ridge_mae"] == pytest.approx(0.392, abs=5e-3)
