"""Signals and kills, sent to real processes."""

import random
import signal
import threading
import time

import pytest

from flax_linattn.training import Interrupted, list_checkpoints
from flax_linattn.training.signals import StopRequest
from tests.training.problem import fingerprint, make_batches, signal_at, train

LONG = 10_000
CHILD = "tests.training.child"


def wait_for_checkpoint(run_dir, process, later_than=-1):
    """Waits until the process has saved a checkpoint beyond a step."""
    while process.poll() is None:
        steps = [checkpoint.step for checkpoint in list_checkpoints(run_dir)]
        if steps and max(steps) > later_than:
            return
        time.sleep(0.01)
    pytest.fail(f"the run ended: {process.stderr}")


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_saves_and_sets_the_exit_code(children, tmp_path, signum, code):
    process = children.start(CHILD, tmp_path, LONG)
    wait_for_checkpoint(tmp_path, process)
    process.send_signal(signum)
    assert process.wait() == code
    stderr = process.stderr
    newest = list_checkpoints(tmp_path)[-1]
    assert (
        f"Stopped by {signum.name} after step {newest.step} ({newest.epochs_done} of {LONG} epochs"
        in stderr
    )
    assert f"Saved {newest.path}. To continue" in stderr
    assert "with the resume option" in stderr
    assert "Traceback" not in stderr


def kill_until_done(children, run_dir, epochs, kills, rng):
    """Kills a run again and again at random moments, then lets it end."""
    step = -1
    for _ in range(kills):
        process = children.start(CHILD, run_dir, epochs, *(["resume"] if step >= 0 else []))
        wait_for_checkpoint(run_dir, process, later_than=step)
        time.sleep(rng.uniform(0, 0.15))
        process.kill()
        process.wait()
        step = list_checkpoints(run_dir)[-1].step
        if step == epochs * 5:
            break
    train(run_dir, epochs=epochs, resume=True, checkpoint_every_steps=2)


@pytest.mark.parametrize(
    ("epochs", "kills"), [(8, 1), pytest.param(240, 50, marks=pytest.mark.slow)]
)
def test_a_killed_run_goes_on_in_the_same_bits(children, tmp_path, epochs, kills):
    train(tmp_path / "whole", epochs=epochs, checkpoint_every_steps=2)
    kill_until_done(children, tmp_path / "killed", epochs, kills, rng=random.Random(kills))
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "whole")


def test_interrupted_carries_what_the_program_ends_with(tmp_path, capfd):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught:
        train(tmp_path, train=signal_at(make_batches(), 1, signal.SIGTERM))
    assert (caught.value.exit_code, caught.value.code) == (143, 143)
    assert str(caught.value) == caught.value.message
    assert caught.value.message in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signum == signal.SIGINT
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(SystemExit) as caught, StopRequest():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_outside_the_main_thread_leaves_the_handlers_alone(tmp_path):
    seen = []

    def work():
        before = signal.getsignal(signal.SIGINT)
        with StopRequest():
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
