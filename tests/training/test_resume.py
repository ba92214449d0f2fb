"""A resumed run ends in the bits of a run that never stopped."""

import jax
import optax
import pytest

from flax_linattn.training import Interrupted, list_checkpoints, load_opt_state
from tests.training.problem import (
    STEPS_PER_EPOCH,
    Net,
    Source,
    bits,
    fingerprint,
    loss_fn,
    make_batches,
    read_metrics,
    signal_at,
    train,
)


@pytest.fixture(scope="module", params=[None, 3], ids=["one run", "three seeds"])
def runs(request):
    """A single model, or an axis of runs."""
    return request.param


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, runs):
    run_dir = tmp_path_factory.mktemp("whole")
    model, _ = train(run_dir, runs=runs)
    return fingerprint(run_dir), bits(model)


@pytest.mark.slow
def test_interrupted_after_every_step(tmp_path, runs, uninterrupted):
    steps = 3 * STEPS_PER_EPOCH
    for step in range(steps):
        with pytest.raises(Interrupted):
            train(tmp_path, runs=runs, train=signal_at(make_batches(), step), resume=step > 0)
        assert list_checkpoints(tmp_path)[-1].step == step + 1
    model, result = train(tmp_path, runs=runs, resume=True)
    assert result.steps == steps
    assert fingerprint(tmp_path)["metrics"] == uninterrupted[0]["metrics"]
    assert fingerprint(tmp_path)["arrays"] == uninterrupted[0]["arrays"]
    assert bits(model) == uninterrupted[1]


def test_interrupted_during_validation(tmp_path, runs):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    validation = make_batches(count=20, seed=None)
    train(whole, runs=runs, validation=validation)
    with pytest.raises(Interrupted):
        train(parts, runs=runs, validation=signal_at(validation, 1))
    newest = list_checkpoints(parts)[-1]
    assert (newest.step, newest.epochs_done) == (STEPS_PER_EPOCH, 0)
    train(parts, runs=runs, validation=validation, resume=True)
    assert fingerprint(parts) == fingerprint(whole)


def test_checkpoints_within_the_epoch_change_nothing(tmp_path, runs, uninterrupted):
    train(tmp_path, runs=runs, checkpoint_every_steps=2)
    assert fingerprint(tmp_path)["arrays"] == uninterrupted[0]["arrays"]
    assert read_metrics(tmp_path) == uninterrupted[0]["metrics"]


def test_killed_between_checkpoints(tmp_path, runs, uninterrupted):
    class Killed(BaseException):
        pass

    def kill(step, batch):
        if step == 10:
            raise Killed

    with pytest.raises(Killed):
        killed = Source(make_batches(), kill)
        train(tmp_path, runs=runs, train=killed, checkpoint_every_steps=4)
    model, _ = train(tmp_path, runs=runs, resume=True, checkpoint_every_steps=4)
    assert bits(model) == uninterrupted[1]


def test_more_epochs_go_on_from_the_end(tmp_path, runs, uninterrupted):
    train(tmp_path, runs=runs, epochs=2)
    model, _ = train(tmp_path, runs=runs, epochs=3, resume=True)
    assert fingerprint(tmp_path) == uninterrupted[0]
    assert bits(model) == uninterrupted[1]


def test_a_finished_run_returns_its_best(tmp_path, runs):
    first, before = train(tmp_path, runs=runs, epochs=2)
    others = Net(seed=9) if runs is None else [Net(seed=9) for _ in range(runs)]
    second, after = train(tmp_path, runs=runs, epochs=2, resume=True, model=others)
    assert bits(first) == bits(second)
    assert before == after


def test_an_optimizer_that_draws_random_numbers(tmp_path):
    noisy = optax.chain(optax.add_noise(0.1, 0.5, key=jax.random.key(1)), optax.sgd(0.05))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, epochs=2, optimizer=noisy)
    with pytest.raises(Interrupted):
        train(parts, epochs=2, train=signal_at(make_batches(), 6), optimizer=noisy)
    train(parts, epochs=2, resume=True, optimizer=noisy)
    assert fingerprint(parts)["arrays"] == fingerprint(whole)["arrays"]


def test_lines_beyond_the_restored_step_are_dropped(tmp_path):
    train(tmp_path, epochs=2)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3}\n{"epo')  # a later line, and one that a kill left half written
    train(tmp_path, epochs=3, resume=True)
    assert [line["epoch"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_resume_needs_a_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint to resume from in .*nowhere"):
        train(tmp_path / "nowhere", resume=True)


def test_a_new_run_needs_an_unused_folder(tmp_path):
    train(tmp_path, epochs=1)
    with pytest.raises(ValueError, match=r"Resume it .* or choose another folder"):
        train(tmp_path, epochs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": make_batches(count=20)}, "steps_per_epoch=5, but now steps_per_epoch is 3"),
        ({"train": make_batches(size=9)}, "batch_size=8, but now batch_size is 9"),
        ({"monitor": "accuracy"}, "monitor='loss'"),
        ({"mode": "max"}, "made with mode='min', but now mode is 'max'"),
        ({"model": Net(width=5)}, r"kernel: saved float32\[3, 4\], requested .*\[3, 5\]"),
        ({"optimizer": optax.sgd(0.1, momentum=0.9)}, r"optimizer or .* are not those .*opt_state"),
    ],
    ids=["data", "batch size", "monitor", "mode", "model", "optimizer"],
)  # fmt: skip
def test_a_different_run_is_refused(tmp_path_factory, request, change, message):
    run_dir = tmp_path_factory.getbasetemp() / "finished_epoch"
    if not run_dir.exists():
        train(run_dir, epochs=1)
    before = fingerprint(run_dir)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        train(run_dir, epochs=2, resume=True, **change)
    assert fingerprint(run_dir) == before


def test_another_run_starts_with_the_state_of_an_optimizer(tmp_path):
    """Moments and their count go on; the schedule of the learning rate starts again."""
    adam = optax.adam(optax.constant_schedule(0.01))
    how = {
        "optimizer": adam,
        "loss": lambda model, batch, dropout_key: loss_fn(model, batch, None),
        "train": make_batches(seed=None),
        "validation": make_batches(seed=None),
    }
    whole, _ = train(tmp_path / "whole", epochs=4, **how)
    model, result = train(tmp_path / "first", epochs=2, **how)
    assert result.best_step == 2 * STEPS_PER_EPOCH
    opt_state = load_opt_state(adam, model, tmp_path / "first")
    moments, schedule = opt_state
    assert (int(moments.count), int(schedule.count)) == (2 * STEPS_PER_EPOCH, 0)
    second, _ = train(tmp_path / "second", epochs=2, model=model, opt_state=opt_state, **how)
    assert bits(second) == bits(whole)

    sgd, wide = optax.sgd(0.1, momentum=0.9), Net(width=5)
    with pytest.raises(
        ValueError, match=r"trace\.layers\.0\.bias: expected float32\[4\], found not"
    ):
        load_opt_state(sgd, model, tmp_path / "first")
    with pytest.raises(ValueError, match=r"expected float32\[5\], found float32\[4\]\n"):
        load_opt_state(adam, wide, tmp_path / "first")
    moments, _ = load_opt_state(adam, wide, tmp_path / "first", skip_mismatched=True)
    assert not moments.mu["layers"][0]["bias"][...].any()
    assert moments.mu["layers"][1]["bias"][...].any()
