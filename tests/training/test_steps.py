"""Training that is counted in steps, or validated within epochs."""

import numpy as np
import pytest

from flax_linattn.training import FitConfig, Interrupted, learning_curve, list_checkpoints
from flax_linattn.training.progress import ProgressDisplay
from tests.training.problem import (
    STEPS_PER_EPOCH,
    bits,
    fingerprint,
    make_batches,
    read_metrics,
    signal_at,
    train,
)


def steps_of(run_dir):
    return [line["step"] for line in read_metrics(run_dir)]


def test_steps_of_whole_passes_are_epochs(tmp_path):
    """To the bit, and in every name and line."""
    a, by_epochs = train(tmp_path / "epochs", epochs=2)
    b, by_steps = train(tmp_path / "steps", epochs=None, steps=2 * STEPS_PER_EPOCH)
    c, explicit = train(tmp_path / "every", epochs=2, validate_every=STEPS_PER_EPOCH)
    assert bits(a) == bits(b) == bits(c)
    prints = [fingerprint(tmp_path / name) for name in ("epochs", "steps", "every")]
    assert prints[0] == prints[1] == prints[2]
    assert by_epochs.epochs == by_steps.epochs == explicit.epochs == 2


@pytest.mark.parametrize(
    ("config", "steps"),
    [({"epochs": None, "steps": 8}, [5, 8]), ({"epochs": None, "steps": 3}, [3]),
     ({"epochs": None, "steps": 7, "validate_every": 3}, [3, 6, 7]),
     ({"epochs": 2, "validate_every": 4}, [4, 8, 10]),
     ({"epochs": 2, "validate_every": 7}, [7, 10])],
    ids=str,
)  # fmt: skip
def test_when_it_is_validated(tmp_path, config, steps):
    _, result = train(tmp_path, **config)
    assert steps_of(tmp_path) == steps
    assert (result.steps, result.epochs) == (steps[-1], steps[-1] // STEPS_PER_EPOCH)
    assert not result.stopped_early
    newest = list_checkpoints(tmp_path)[-1]
    assert (newest.step, newest.epochs_done) == (steps[-1], len(steps))


def test_lines_name_the_best_step(tmp_path):
    """And the epoch that each step belongs to."""
    _, result = train(tmp_path, epochs=None, steps=12, validate_every=4)
    lines = read_metrics(tmp_path)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    losses = [line["validation_loss"] for line in lines]
    best = [lines[np.argmin(losses[: i + 1])]["step"] for i in range(3)]
    assert [line["best_step"] for line in lines] == best
    assert (result.best_step, result.best_value) == (best[-1], min(losses))
    assert result.best_checkpoint.name.startswith(f"step_{result.best_step:09d}_")


def test_the_period_has_no_influence_on_the_steps(tmp_path):
    train(tmp_path / "one", epochs=None, steps=12)
    train(tmp_path / "three", epochs=None, steps=12, validate_every=3)
    arrays = [fingerprint(tmp_path / name)["arrays"]["model"] for name in ("one", "three")]
    assert arrays[0] == arrays[1]


def test_a_time_limit_ends_with_a_validation(tmp_path, capsys):
    """With more time a run continues to the bits of one without a limit."""
    every = {"epochs": None, "steps": 60, "validate_every": 15}
    _, result = train(tmp_path / "run", **every, time_limit=1e-9)
    assert (steps_of(tmp_path / "run"), result.steps) == ([15], 15)
    assert "note: the time limit of 1e-09 s ended training after step 15 of 60" in (
        capsys.readouterr().err
    )
    train(tmp_path / "long", epochs=None, steps=60, time_limit=1e-9)
    assert steps_of(tmp_path / "long") == [5]
    model, _ = train(tmp_path / "run", **every, time_limit=3600.0, resume=True)
    whole, _ = train(tmp_path / "whole", **every)
    assert bits(model) == bits(whole) and steps_of(tmp_path / "run") == [15, 30, 45, 60]


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_is_a_number_of_seconds(limit):
    with pytest.raises(ValueError, match="time_limit must be a number of seconds above 0, or None"):
        FitConfig(steps=1, time_limit=limit)


def test_patience_counts_validations(tmp_path):
    # The wrong way round: the loss falls, so that the first validation stays the best.
    _, result = train(tmp_path, mode="max", patience=2, validate_every=2)
    assert result.stopped_early
    assert steps_of(tmp_path) == [2, 4, 6]


@pytest.mark.parametrize("every", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_interrupted_after_every_step(tmp_path, every):
    long = {"epochs": None, "steps": 11, "validate_every": 4, "checkpoint_every_steps": every}
    model, _ = train(tmp_path / "whole", **long)
    parts = tmp_path / "parts"
    for step in range(11):
        with pytest.raises(Interrupted, match=f"after step {step + 1} of 11. Saved"):
            train(parts, train=signal_at(make_batches(), step), resume=step > 0, **long)
    resumed, _ = train(parts, resume=True, **long)
    assert bits(resumed) == bits(model)
    for part in ("metrics", "arrays", "best"):
        assert fingerprint(parts)[part] == fingerprint(tmp_path / "whole")[part]


def test_more_steps_go_on_from_the_end(tmp_path):
    """In the same bits; where the first end was no whole period, its validation stays."""
    whole, _ = train(tmp_path / "whole", epochs=None, steps=12, validate_every=4)
    for end, steps in ((8, [4, 8, 12]), (6, [4, 6, 8, 12])):
        run_dir = tmp_path / str(end)
        train(run_dir, epochs=None, steps=end, validate_every=4)
        model, _ = train(run_dir, epochs=None, steps=12, validate_every=4, resume=True)
        assert steps_of(run_dir) == steps
        assert bits(model) == bits(whole)
    assert fingerprint(tmp_path / "8") == fingerprint(tmp_path / "whole")


def test_another_period_is_refused(tmp_path):
    train(tmp_path, epochs=1)
    with pytest.raises(ValueError, match="validate_every=5, but now validate_every is 2") as caught:
        train(tmp_path, epochs=2, validate_every=2, resume=True)
    assert "validate_every" in caught.value.options


@pytest.mark.parametrize(
    ("config", "message"),
    [({}, "got neither"), ({"epochs": 2, "steps": 9}, "got 2 and 9")],
    ids=["neither", "both"],
)
def test_epochs_or_steps_are_given(config, message):
    with pytest.raises(ValueError, match=f"either epochs.* or steps.*; {message}") as caught:
        FitConfig(**config)
    assert caught.value.options == ("epochs", "steps")


def test_progress_is_shown_in_steps(tmp_path, capfd):
    with ProgressDisplay(True, None, 30, 0) as display:
        for step, best in ((10, 10), (20, 10), (30, 30)):
            display.step(step, 1)
            display.validation(
                {"epoch": 1, "step": step, "best_epoch": 1, "best_step": best, "train_loss": 0.5,
                 "validation_loss": 0.25, "monitor": "loss", "examples_per_second": 9.0}
            )  # fmt: skip
    lines = capfd.readouterr().err.splitlines()
    shown = "train loss 0.5  validation loss 0.25  9 examples/s"
    assert lines == [
        f"step 10/30  {shown}  best",
        f"step 20/30  {shown}",
        f"step 30/30  {shown}  best",
        "note: the last validation was the best; more steps may improve it",
    ]


def test_the_learning_curve_is_over_steps(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    plot = Axes.plot

    def spy(self, x, *args, **kwargs):
        drawn.append(x)
        return plot(self, x, *args, **kwargs)

    monkeypatch.setattr(Axes, "plot", spy)
    _, result = train(tmp_path, epochs=None, steps=8, validate_every=3)
    assert learning_curve(tmp_path).read_bytes().startswith(b"\x89PNG")
    assert drawn == [[3, 6, 8], [3, 6, 8], result.best_step]
