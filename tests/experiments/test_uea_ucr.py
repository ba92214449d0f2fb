"""Classifiers on the UEA and UCR archives: files, decisions, verdicts, and rows that are kept."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.classification import archive_methods as methods
from experiments.classification import (
    archive_sets,
    archive_tables,
    augmentation,
    published_code,
    uea_ucr,
)
from experiments.classification.archive_sets import DATA_SETS, LARGE, PACKAGES, Part, Prepared
from experiments.classification.baseline_classifiers import decision_values
from experiments.classification.lstm import LSTMClassifier
from experiments.experiment import DATA_FOLDER
from experiments.statements import statements_table
from experiments.verdicts import FAILS, HOLDS, IN_PART, NOT_RUN, OPEN
from flax_linattn.data import BucketBatches
from flax_linattn.tasks.classify.series.early import compute_logits

STEPS = [0.1, 0.5, 1.0]


@pytest.fixture
def embedded_alone(monkeypatch):
    """No data but those of the package, and no other package that has some."""
    monkeypatch.delenv(DATA_FOLDER, raising=False)
    monkeypatch.setattr(archive_sets, "package_folder", lambda package: None)


def rows(gains):
    """Rows of MiniRocket at 90 %, a ridge at 85 %, and ours with these gains, in points."""
    made = {"commit": "abc", "commit_date": "2026-11-30T00:00:00+00:00", "cores": 1}
    found = []
    for name, gain in zip(DATA_SETS, gains, strict=False):
        accuracies = {"MiniRocket": 90, "ridge": 85, methods.DEFAULT: 90 + gain}
        for method, accuracy in accuracies.items():
            row = {"data_set": name, "method": method, "seed": 0, "cpu_seconds": 2.0}
            found.append({**row, "test_accuracy": accuracy / 100, "made": made})
        found[-1] |= {"test_loss": 0.3, "test_calibration_error": 0.02, "state_bytes": 4000}
        found[-1] |= {"attention_weight": 0.25, "attention_accuracy": 0.5}
        curve = [{"fraction": f, "observations": 9.0, "accuracy": f} for f in STEPS]
        found[-1] |= {"accuracy_by_fraction": curve, "decision_accuracy": 0.8}
        found[-1] |= {"decision_earliness": 0.4, "decision_harmonic_mean": 0.686}
    return found


def test_missing_data_sets_have_a_reason(embedded_alone):
    found, missing = archive_sets.find_files(None)
    assert found == {"JapaneseVowels": {}} and {*missing} == {*DATA_SETS} - {*found}
    assert all("pip install" in missing[name] for name in PACKAGES)
    assert DATA_FOLDER in missing[LARGE]


def test_decisions_count_no_padding():
    mask = np.arange(4) < np.array([[4], [2]])
    part = Part(np.zeros((2, 4, 1)), mask, np.array([0, 1]))
    found = decision_values(np.array([0, 0]), np.array([1, 3]), Prepared(part, part, 2))
    want = {"accuracy": 0.5, "earliness": 0.625, "harmonic_mean": 3 / 7}
    assert found == pytest.approx({f"decision_{name}": value for name, value in want.items()})


def test_the_lstm_ignores_padding():
    model = LSTMClassifier(2, 3, rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 2)), jnp.float32)
    padded = compute_logits(model, {"values": x, "mask": jnp.arange(6)[None] < 4}, None)
    np.testing.assert_allclose(padded, model(x[:, :4], mask=jnp.ones((1, 4), bool)), atol=1e-6)


@pytest.mark.parametrize(
    ("gains", "accurate", "ahead"),
    [
        ([0, 1, -1, 0], HOLDS, HOLDS),
        ([-1, -2, -1.5], FAILS, HOLDS),
        ([9, -6, 0], HOLDS, IN_PART),
        ([1, -5], HOLDS, OPEN),
        ([1], OPEN, HOLDS),
    ],
)
def test_ours_is_judged_over_data_sets(gains, accurate, ahead):
    found = rows(gains)
    assert uea_ucr.judge_against_minirocket(methods.DEFAULT)(found).word == accurate
    assert uea_ucr.judge_against_ridge(methods.DEFAULT)(found).word == ahead
    page = "\n".join(statements_table(uea_ucr.STATEMENTS, found, {"date": "2026-11-30"}))
    assert page.count(f"**{NOT_RUN}**") == 8 and "before the rules" not in page


def test_a_data_set_that_changed_the_default_is_left_out_of_its_verdict():
    found = rows(range(len(DATA_SETS)))
    changed = methods.CHANGED_FOR
    judged = uea_ucr.judge_against_minirocket(methods.DEFAULT)(found)
    assert f"over {len(DATA_SETS) - len(changed)} data sets" in judged.ours
    assert not any(name in judged.ours for name in changed)
    only = [row for row in found if row["data_set"] in changed]
    assert uea_ucr.STATEMENTS[6].verdict(only).word == NOT_RUN


def test_tables_and_panels_show_what_is_known():
    found = rows([1, -1, 0])
    page = archive_tables.table(found, methods.Size())
    assert "| mean rank | 3.0 | 1.5 | 1.5 | 4.0 |" in page
    assert "/ lost against MiniRocket | 0 / 0 / 3 | - | 1 / 1 / 1 | 0 / 0 / 3 |" in page
    assert "| ACSF1 | 80.0 / 40.0 / 68.6 |" in page and "| ACSF1 | 0.300; 2.0 |" in page
    assert "| ACSF1 | 2 | 2 | 2 | 4 | 0.25 |" in page
    assert "to be computed, by the same command: 8 of 11 of ridge" in page
    pytest.importorskip("matplotlib")
    panels = archive_tables.plot(found).axes
    assert len(panels) == 11 and len(panels[0].lines) == 3 and len(panels[9].lines) == 0


@pytest.mark.parametrize(
    ("gains", "word"), [((1, 2, 1, 2), HOLDS), ((0.1, -0.2, 0.1, 0), FAILS), ((9, -2, 1, 0), OPEN)]
)
def test_an_augmentation_is_judged_by_its_gains_for_each_seed(gains, word):
    """Only the default has a run with seed 1, which therefore counts in no difference."""
    found = [
        {"data_set": name, "method": method, "seed": seed, "test_accuracy": value}
        for name, gain in zip(methods.AUGMENTED, gains, strict=True)
        for method, seed, value in (
            *((methods.DEFAULT, 0, 0.5), (methods.DEFAULT, 1, 0.9)),
            (methods.MIXED, 0, 0.5 + gain / 100),
        )
    ]
    judged = uea_ucr.judge_augmentation(methods.MIXED)(found)
    assert judged.word == word and f"ArrowHead {gains[0]:+.1f}" in judged.ours
    page = archive_tables.augmentation_table(found)
    assert f"| -; -; - | {50 + gains[0]:.1f}; -; - |" in page


@pytest.fixture
def batches():
    """One batch of four series and two padding examples."""
    mask = np.arange(12) < np.array([1, 2, 9, 12])[:, None]
    values = np.random.default_rng(0).normal(size=(4, 12, 3)).astype(np.float32)
    arrays = {"values": values * mask[..., None], "mask": mask, "labels": np.arange(4)}
    return BucketBatches(arrays, 6, lengths=(12,), seed=0)


@pytest.mark.parametrize("augment", [augmentation.crop_warp_scale, augmentation.mixup])
def test_augmentation_differs_at_each_step(augment, batches):
    augmented = augmentation.AugmentedBatches(batches, augment, seed=1)
    first, again, second = (augmented.batch(step) for step in (0, 0, 1))
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert array.dtype == batches.batch(0)[name].dtype
    assert not np.array_equal(first["values"], second["values"])
    assert augmented.arrays is batches.arrays and not first["values"][~first["mask"]].any()
    assert np.isclose(first["weight"].sum(), 4)


def test_mixup_weighs_both_labels_as_both_series(batches):
    plain, rng = batches.batch(0), np.random.default_rng(0)
    series = {label: x for label, x in zip(plain["labels"], plain["values"], strict=True)}
    mixed = augmentation.mixup(dict(plain), rng)
    size = len(plain["labels"])
    for row in np.flatnonzero(plain["weight"]):
        a, b = mixed["labels"][row], mixed["labels"][size + row]
        r, rest = mixed["weight"][row], mixed["weight"][size + row]
        assert np.isclose(r + rest, 1)
        expected = r * series[a] + rest * series[b]
        np.testing.assert_allclose(mixed["values"][row], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(mixed["values"][row], mixed["values"][size + row])


def test_a_distorted_series_is_a_part_of_it_at_another_speed(monkeypatch, batches):
    rng = np.random.default_rng(0)
    ramp = np.arange(40.0)[:, None]
    part = augmentation.crop(ramp, rng)
    np.testing.assert_array_equal(np.diff(part, axis=0), 1)
    warped = augmentation.warp(ramp, 40, rng)
    assert warped.shape == (40, 1) and (np.diff(warped, axis=0) > 0).all()
    np.testing.assert_allclose(warped[[0, -1]], ramp[[0, -1]])
    monkeypatch.setattr(augmentation, "SPEED_STD", 0.0)
    np.testing.assert_allclose(augmentation.warp(ramp, 40, rng), ramp)


def test_rows_are_computed_once_and_kept(embedded_alone, tmp_path, capsys):
    arguments = ["--output", str(tmp_path), "--methods", "ridge"]
    uea_ucr.EXPERIMENT.main(arguments)
    out, err = capsys.readouterr()
    assert "| JapaneseVowels | 98" in out and "not computed: ACSF1: aeon is not installed" in err
    path = tmp_path / "uea_ucr.json"
    stored = json.loads(path.read_text())
    assert {"commit", "date", "jax", "numpy", "aeon"} <= stored["rows"][0]["made"].keys()
    first = {**stored["rows"][0], "method": methods.FIRST_DEFAULT}
    stored["rows"].append(first)
    path.write_text(json.dumps(stored | {"finished": True}))
    uea_ucr.EXPERIMENT.main(arguments)
    assert "done before" in capsys.readouterr().err
    assert json.loads(path.read_text())["rows"] == stored["rows"]
    with pytest.raises(ValueError, match=f"check out commit {first['made']['commit']}"):
        uea_ucr.EXPERIMENT.again("", tmp_path, f"method {methods.FIRST_DEFAULT}")


@pytest.mark.parametrize(("points", "word"), [(0.2, HOLDS), (-3.0, FAILS)])
def test_our_transformer_is_judged_by_the_published_code(points, word):
    ours = published_code.FALLING.ours()
    assert len(ours) == 5
    theirs = {seed: accuracy - points / 100 for seed, accuracy in ours.items()}
    key = {"commit": published_code.FALLING.commit, "mask": "causal"}
    found = [key | {"seed": seed, "accuracy": value} for seed, value in theirs.items()]
    verdict = published_code.judge(published_code.FALLING, found)
    assert verdict.word == word and f"{points:+.2f}" in verdict.ours
