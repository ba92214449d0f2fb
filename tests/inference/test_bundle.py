"""Bundles equal their models, and refuse what they cannot run."""

import datetime
import functools
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import inference, models
from flax_linattn.inference import linattn_runtime as runtime
from flax_linattn.inference.linattn_runtime import Bundle, BundleError
from tests.contract.tolerances import assert_same_bits
from tests.inference.cases import CHANNELS, STREAMING, classifier

LENGTH = 15
CHANNEL_TASK = {
    "name": "classify",
    "inputs": [
        {"kind": "values", "names": ["a", "b", "c"], "mean": [1.0, 2.0, 3.0], "std": [2.0] * 3}
    ],
    "outputs": {"kind": "classes", "names": list("wxyz")},
}


@pytest.fixture(scope="module")
def export(tmp_path_factory: Any) -> Any:
    """Exports a classifier of a mechanism once, for the CPU."""

    @functools.cache
    def export(mechanism: str = "aaren") -> Path:
        path = tmp_path_factory.mktemp("bundle") / "model.linattn"
        inference.export(
            path, classifier(mechanism), jnp.ones((1, CHANNELS)), max_length=LENGTH,
            chunk_sizes=(4, 8), platforms=("cpu",), task=CHANNEL_TASK,
        )  # fmt: skip
        return path

    return export


def observations(rows: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, LENGTH, CHANNELS)).astype(np.float32)


@pytest.mark.parametrize("mechanism", STREAMING)
def test_a_bundle_is_its_model(mechanism: str, export: Any) -> None:
    model, bundle, x = classifier(mechanism), Bundle(export(mechanism)), observations()
    state, own = bundle.init_state(2), model.init_state(2, LENGTH)
    assert list(state) == [leaf["name"] for leaf in bundle.signature["state"]]
    assert_same_bits(list(state.values()), jax.tree.leaves(own))
    step = nnx.jit(lambda model, x, state, mask: model.step(x, state, mask=mask))
    for t in range(LENGTH):
        mask = np.array([True, t % 3 != 0])
        y, state = bundle.step(x[:, t], state, mask)
        want, own = step(model, x[:, t], own, mask)
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-6)
    for got, leaf in zip(state.values(), jax.tree.leaves(own), strict=True):
        np.testing.assert_allclose(got, leaf, rtol=1e-6, atol=1e-6)


def test_prefill_is_many_steps_for_any_number_of_rows(export: Any) -> None:
    bundle = Bundle(export())
    for rows, length in ((1, 3), (3, 8), (2, LENGTH)):
        x = observations(rows)[:, :length]
        y, state = bundle.prefill(x, bundle.init_state(rows))
        stepped = bundle.init_state(rows)
        for t in range(length):
            want, stepped = bundle.step(x[:, t], stepped)
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-6)
        for got, leaf in zip(state.values(), stepped.values(), strict=True):
            np.testing.assert_allclose(got, leaf, rtol=1e-5, atol=1e-6)


ALONE = """
import sys
sys.modules.update(flax=None, flax_linattn=None, safetensors=None)
import numpy as np
from linattn_runtime import Bundle
session = Bundle(sys.argv[1]).session()
for row in np.load(sys.argv[2]):
    print([value for value in session.step(row).values()][1:])
"""


def test_the_runtime_needs_only_jax_numpy_and_flatbuffers(export: Any, tmp_path: Path) -> None:
    (tmp_path / "linattn_runtime.py").write_text(Path(runtime.__file__).read_text())
    (tmp_path / "main.py").write_text(ALONE)
    (x,) = observations(1)
    np.save(tmp_path / "x.npy", x[:3])
    done = subprocess.run(
        [sys.executable, tmp_path / "main.py", export(), tmp_path / "x.npy"],
        capture_output=True, text=True, env={"PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    scaled = (x[:3].astype(np.float64) - [1, 2, 3]) / 2
    want = jax.nn.softmax(inference.unroll(classifier("aaren"), scaled[None].astype(np.float32))[0])
    np.testing.assert_allclose([json.loads(line) for line in done.stdout.splitlines()], want, 1e-5)


def test_a_session_is_saved_and_continued(export: Any, tmp_path: Path) -> None:
    session = Bundle(export()).session()
    session.step({"a": 1.0, "b": 2})  # c is missing: the mean
    session.step([None, float("nan"), 2.5])
    saved = session.to_bytes()
    want = session.step([1, 2, 3])
    other = Bundle(export()).session()
    other.from_bytes(saved)
    assert other.num_steps == 2 and other.step([1, 2, 3]) == want
    other.reset()
    first = other.step([1, 2, 3])
    assert other.num_steps == 1 and first != want and first["prediction"] in "wxyz"
    later = rewritten(export(), tmp_path / "a", created="2027-01-01", platforms=["cpu", "tpu"])
    Bundle(later).session().from_bytes(saved)  # a bundle that was renewed
    for another in (export("softmax"), rewritten(export(), tmp_path / "b", state_format=2)):
        with pytest.raises(BundleError, match="the session belongs to another bundle"):
            Bundle(another).session().from_bytes(saved)
    for wrong, message in ((b"PK", "other bytes"), (saved[:-1], "are cut"), (saved + b"0", "long")):
        with pytest.raises(BundleError, match=message):
            other.from_bytes(wrong)
    assert other.num_steps == 1


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([1, 2], "expected finite numbers for a, b, c, got"),
        ([1, 2, float("inf")], "expected finite numbers"),
        ([1, 2, 10**400], "expected finite numbers"),
        ([1, 2, 1e300], "expected values in the range of float32, got"),
        ("abc", "expected finite numbers"),
        (7, "expected finite numbers"),
        ({"a": 1, "d": 2}, "unknown channel 'd'; expected a, b, c"),
    ],
)
def test_a_bad_observation_leaves_the_session(export: Any, observation: Any, message: str) -> None:
    session = Bundle(export()).session()
    session.step([1, 2, 3])
    with pytest.raises(BundleError, match=message):
        session.step(observation)
    assert session.num_steps == 1


@pytest.mark.parametrize(
    ("zone", "time", "message"),
    [
        (None, "2016-07-01T00:00Z", "expected a time without an offset from UTC, such as 2026"),
        (None, "yesterday", "got 'yesterday'"),
        (None, None, "got None"),
        ("Asia/Tokyo", "2016-07-01T00:00", r"with its offset from UTC, such as 2026.*\+01:00"),
        ("Asia/Tokyo", "9999-12-31T23:00Z", "expected a time with its offset from UTC"),
        ("Nowhere/None", "2016-07-01T00:00Z", "unknown time zone Nowhere/None; install the pack"),
    ],
)
def test_times_that_do_not_fit(zone: str | None, time: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        runtime._local(time, zone)


def raw_session(part: Any, outputs: int, width: int, path: Path, **task: Any) -> Any:
    """A session of a classifier of ``width`` columns with an input part of one kind."""
    model = models.SequenceClassifier(
        width, outputs, features=8, num_layers=1, num_heads=2, mechanism="aaren", rngs=nnx.Rngs(0)
    )
    names = [*map(str, range(outputs))]
    task = {"name": "raw", "inputs": [part], "outputs": {"kind": "classes", "names": names}, **task}
    inference.export(
        path, model, jnp.ones((1, width)), chunk_sizes=(), platforms=("cpu",), task=task
    )
    return Bundle(path).session()


EVENT = {
    "kind": "event", "names": ["buy", "sell"], "initial": [0.0, 0.0], "dates": False,
    "scale": 2.0, "resolution": 0.5, "periods": [24.0], "clock": [10.0],
}  # fmt: skip
DECISION = {
    "kind": "decision", "names": ["reward", "x", "y"], "mean": [1.0, 0.0], "std": [2.0, 1.0],
    "return_scale": 10.0, "initial": [50.0, 0.0], "clock": "episode", "max_steps": 4,
    "is_discrete": True,
}  # fmt: skip


def test_events_become_columns(tmp_path: Path) -> None:
    """Gap, whether it is known, type, and phases of the time; bad events change nothing."""
    session = raw_session(EVENT, 3, 7, tmp_path / "model.linattn")

    def phases(time: float, since: float) -> list[float]:
        turns = 2 * np.pi * np.array([time / 24, since / 10])
        return [*np.cos(turns), *np.sin(turns)]

    x, *_ = session.prepare("buy", 3.0)
    np.testing.assert_allclose(x[0], [0, 0, 0, *phases(3, 0)], rtol=1e-6)
    session.step("buy", 3.0)
    x, *_ = session.prepare("sell", 7.0)
    np.testing.assert_allclose(x[0], [np.log(2), 1, 1, *phases(7, 4)], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(session.prepare("buy", 3)[0][0, 0], np.log(0.25), rtol=1e-6)
    before = session.to_bytes()
    for name, time, message in [
        ("hold", 8.0, r"expected an event type \(buy, sell\), got 'hold'"),
        (None, 8.0, "expected an event type"),
        ("buy", 2.0, "expected times that do not decrease, got 2.0"),
        ("buy", "noon", "expected the time of the event as a number, got 'noon'"),
        ("buy", float("nan"), "expected the time of the event as a number"),
        ("buy", None, "expected the time of the event as a number"),
    ]:
        with pytest.raises(BundleError, match=message):
            session.step(name, time)
    assert session.to_bytes() == before
    want = session.step("sell", 7.0)
    session.from_bytes(before)
    assert session.step("sell", 7.0) == want
    with pytest.raises(BundleError, match="another record"):
        session.from_bytes(before.replace(b'"last": [3.0, 3.0]', b'"last": [3.0     ]'))
    dated = raw_session({**EVENT, "dates": True}, 3, 7, tmp_path / "dated.linattn")
    with pytest.raises(BundleError, match="with its offset from UTC"):
        dated.step("buy", "2026-11-28T14:00")
    assert dated.step("buy", "2026-11-28T14:00+01:00")


@pytest.mark.parametrize("clock", ["episode", "context"])
def test_decisions_become_columns(clock: str, tmp_path: Path) -> None:
    """Time, whether the last action is known, return-to-go, observation and last action."""
    part = {**DECISION, "clock": clock}
    session = raw_session(part, 2, 6, tmp_path / "model.linattn", context=2)
    action, rewards, total = 0.0, [None, 5.0, -1.0, 2.0], 50.0
    for step, reward in enumerate(rewards):
        total -= reward or 0.0
        x, _, last = session.prepare([reward, 3.0, step], None)
        age = session._ages(step + 1)
        rest = [total / 10, 1.0, step, action]
        times = np.array(age) - 1 if clock == "context" else [step] * 2
        want = [[time, float(own > 1), *rest] for time, own in zip(times, age, strict=True)]
        np.testing.assert_allclose(x, want, rtol=1e-6)
        action = float(session.step({"reward": reward, "x": 3.0, "y": step})["prediction"])
        assert session._last == [total, action] and last[0] == total
    with pytest.raises(BundleError, match="an episode has at most 4 steps"):
        session.step([1.0, 3.0, 4.0])
    session.reset()
    session.step([None, 3.0, 0.0])
    with pytest.raises(BundleError, match="expected the reward"):
        session.step([None, 1, 2])
    with pytest.raises(BundleError, match="expected the numbers of the observation"):
        session.step([1, None, 2])


def test_a_cache_has_an_end(export: Any) -> None:
    session = Bundle(export("softmax")).session()
    for _ in range(LENGTH):
        session.step([1, 2, 3])
    with pytest.raises(BundleError, match=f"the session is full after {LENGTH} observations"):
        session.step([1, 2, 3])


def test_shapes_that_do_not_fit(export: Any) -> None:
    bundle = Bundle(export())
    with pytest.raises(BundleError, match=r"expected observations as \[B, 3\], got \[2, 4\]"):
        bundle.step(np.ones((2, 4)), bundle.init_state(2))
    with pytest.raises(BundleError, match=r"expected observations as \[B, T, 3\], got \[2, 0, 3\]"):
        bundle.prefill(np.ones((2, 0, 3)), bundle.init_state(2))
    with pytest.raises(BundleError, match=r"expected backbone\.position of the state"):
        bundle.step(np.ones((2, 3)), bundle.init_state(1))


def rewritten(path: Path, out: Path, **changes: Any) -> Path:
    """A bundle with other values in its signature, and its checksum set right."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    signature = json.loads(parts[runtime.SIGNATURE]) | changes
    parts[runtime.SIGNATURE] = json.dumps(signature).encode()
    parts[runtime.CHECKSUM] = hashlib.sha256(parts[runtime.SIGNATURE]).hexdigest().encode()
    with zipfile.ZipFile(out, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return out


def test_an_old_new_or_foreign_bundle(export: Any, tmp_path: Path) -> None:
    out, versions = tmp_path / "a.linattn", Bundle(export()).signature["versions"]
    yesterday = (datetime.date.today() - datetime.timedelta(days=1)).isoformat()
    old = {"readable_until": yesterday, "versions": versions | {"jax": "0.9.9"}}
    for changes, message in (
        (old, f"expired on {yesterday}: JAX .* may not read programs of JAX 0.9.9. Export the run"),
        ({"format": 2}, "format 2 needs a newer linattn_runtime.py"),
        ({"platforms": ["tpu"]}, "was exported for tpu; export it again for cpu"),
        ({"parts": {}}, "a part is missing or unknown"),
        ({"task": None}, ""),
    ):
        path = rewritten(export(), out, **changes)
        if message:
            with pytest.raises(BundleError, match=message):
                Bundle(path)
    # Programs of the same version are read for ever, and arrays without a description are taken.
    assert Bundle(rewritten(export(), out, readable_until=yesterday)).signature["chunk_sizes"]
    with pytest.raises(BundleError, match="does not describe raw observations"):
        Bundle(rewritten(export(), out, task=None)).session()
    with pytest.raises(BundleError, match=r"the bundle .* does not exist"):
        Bundle(tmp_path / "none")


@settings(max_examples=200)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_bundle_is_refused(
    export: Any, tmp_path_factory: Any, place: float, byte: int, cut: bool
) -> None:
    """Wherever a byte differs or the file ends: it is refused, or read to equal parts."""
    content = bytearray(export().read_bytes())
    at = int(place * len(content))
    content[at] ^= byte
    path = tmp_path_factory.mktemp("damaged") / "a"
    path.write_bytes(content[:at] if cut else content)
    try:
        got = runtime._read_parts(path)
    except BundleError:
        return
    assert not cut and got == runtime._read_parts(export())


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    model, x = classifier("softmax"), jnp.ones((1, CHANNELS))
    for options, message in (
        ({}, "expected max_length for a mechanism with a cache, got none"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"max_length": 9, "chunk_sizes": (0,)}, "chunk_sizes must be"),
        ({"max_length": 9, "platforms": ("abacus",)}, "platforms"),
    ):
        with pytest.raises(ValueError, match=message):
            inference.export(tmp_path / "a", model, x, **options)
    layer: Any = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="expected a model that streams"):
        inference.export(tmp_path / "a", layer, x)
    assert not list(tmp_path.iterdir())
