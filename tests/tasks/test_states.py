"""State files: what a stranger may have put in them, and two streams that want the same one."""

import contextlib
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import cli, inference, tasks
from flax_linattn.storage import file_lock
from tests.power_loss import PowerLoss
from tests.tasks import states
from tests.tasks.commands import command_line, fail, succeed


@pytest.fixture(scope="module", params=states.OPTIONS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def saved(name, tmp_path_factory):
    return states.saved_stream(name, tmp_path_factory.mktemp("states") / f"{name}.npz")


def floats(entries: dict[str, bytes]) -> str:
    """The first entry of floating numbers."""
    return next(name for name in entries if name[0].isdigit() and b"'<f4'" in entries[name][:128])


def npy_file(path: Path, entries: dict[str, bytes]) -> None:
    path.write_bytes(states.npy(np.ones(3)))


def raw_facts(text: str) -> Any:
    return lambda path, entries: states.with_facts(path, entries, text)


def fact(name: str, value: Any) -> Any:
    def write(path: Path, entries: dict[str, bytes]) -> None:
        facts = states.facts_of(entries)
        facts[name] = value
        states.with_facts(path, entries, facts)

    return write


def entry(content: Any) -> Any:
    """A file one of whose arrays is something else."""

    def write(path: Path, entries: dict[str, bytes]) -> None:
        which = floats(entries)
        value = content(states.array_of(entries, which)) if callable(content) else content
        states.write_entries(path, {**entries, which: value})

    return write


def patched(at: int, value: bytes, local: int | None) -> Any:
    def write(path: Path, entries: dict[str, bytes]) -> None:
        states.write_entries(path, entries)
        path.write_bytes(states.patch_zip(path.read_bytes(), at, value, local=local))

    return write


def compressed(path: Path, entries: dict[str, bytes]) -> None:
    states.write_entries(path, entries, zipfile.ZIP_DEFLATED)


def without_first(path: Path, entries: dict[str, bytes]) -> None:
    states.write_entries(path, {k: v for k, v in entries.items() if k != "0.npy"})


def one_more(path: Path, entries: dict[str, bytes]) -> None:
    states.write_entries(path, {**entries, "spare.npy": states.npy(np.ones(1))})


def twice(path: Path, entries: dict[str, bytes]) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        states.write_entries(path, [*entries.items(), ("0.npy", entries["0.npy"])])


def many(path: Path, entries: dict[str, bytes]) -> None:
    states.write_entries(path, entries | {f"{i}.npy": b"" for i in range(100, 10_200)})


def objects(array: Any) -> bytes:
    return states.npy(np.array([[1], None], object), allow_pickle=True)


def with_nan(array: Any) -> bytes:
    return states.npy(np.full_like(array, np.nan))


def longer_facts(path: Path, entries: dict[str, bytes]) -> None:
    states.with_facts(path, entries, "[" + "0," * 10**6 + "0]")


CRAFTED = {
    "a plain .npy": (npy_file, "no state file"),
    "facts that are a list": (raw_facts("[1]"), "no JSON object"),
    "facts that are a string": (raw_facts('"x"'), "no JSON object"),
    "facts that are null": (raw_facts("null"), "no JSON object"),
    "facts that are deep": (raw_facts(states.DEEP), "RecursionError"),
    "facts that are deep within": (raw_facts('{"a": ' + states.DEEP), "RecursionError"),
    "facts that are no JSON": (raw_facts("{"), "JSONDecodeError"),
    "facts that are numbers": (
        lambda path, e: states.write_entries(path, {**e, "facts.npy": states.npy(np.ones(2))}),
        "no text",
    ),
    "facts of megabytes": (longer_facts, "longer than"),
    "another format": (fact("format", 7), "has format 7, but this version reads"),
    "another layout of caches": (
        fact("format", 2),
        "caches store each head's tokens together since format 3",
    ),
    "another model": (fact("model", 7), "of another stream.*: its model has other weights"),
    "another mechanism": (
        lambda path, entries: states.with_facts(
            path, entries, states.facts_of(entries) | {"model": 7, "mechanism": "linear"}
        ),
        "is the state of another stream.*: its mechanism is 'linear', expected 'aaren'\\.",
    ),
    "a shape of 1e11": (
        entry(states.npy_header("'<f4'", "(100000000000,)", b"\0" * 64)), "does not match"
    ),
    "a shape below 0": (entry(states.npy_header("'<f4'", "(-1, -16)", b"\0" * 64)), "unsupported"),
    "a shape of nothing": (entry(states.npy_header("'V0'", "(100000000000,)")), "unsupported"),
    "a header of another format": (
        entry(states.npy_header("'<f4'", "(16,)", b"\0" * 64, version=2)), "unknown format version"
    ),
    "a header that is code": (entry(states.npy_header("print(1)", "(16,)")), "no state file"),
    "objects": (entry(objects), "another kind"),
    "another dtype": (entry(lambda a: states.npy(a.astype(np.float64))), "of another model"),
    "another shape": (entry(lambda a: states.npy(a[..., None])), "of another model"),
    "NaN": (entry(with_nan), "holds NaN in"),
    "encrypted": (patched(8, b"\x01\x00", 6), "encrypted"),
    "an unknown compression": (patched(10, b"\x63\x00", 8), "compressed"),
    "a known compression": (compressed, "compressed"),
    "an entry too few": (without_first, "its entries are not the entries"),
    "an entry too many": (one_more, "its entries are not the entries"),
    "an entry twice": (twice, "arrays with distinct names"),
    "ten thousand entries": (many, "more than 10,000 entries"),
}  # fmt: skip


LAST = {"classify": "_last", "offline-rl": "agent.returns_to_go", "forecast": "_last_values"}
RECORDS = {
    "num_steps below 0": ({"num_steps": -5}, "expected num_steps as integers of at least 0"),
    "another num_steps": ({"num_steps": 3}, "expected (at least 5|a state after)"),
    "more num_steps": ({"num_steps": 8}, "expected (a state after|num_steps 8, got 5)"),
    "fewer rows": ({"num_breaks": -3}, "expected num_breaks as integers of at least 0"),
    "a last of infinity": ({"last": np.inf}, "expected (last|last_values|returns_to_go) as finite"),
    "a last of NaN": ({"last": np.nan}, "holds NaN in record"),
    "more rows of the time": ({"_at_last": 6}, "contradict each other"),
    "no row of the time": ({"_at_last": 0}, "contradict each other"),
    "nanoseconds of more than one microsecond": ({"_time_utc": 1000}, "contradict each other"),
    "rows of the time below 0": ({"_at_last": -1}, "expected at_last as integers of at least 0"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_that_no_stream_has_is_refused(name, saved, case, tmp_path):
    stream, path = saved
    values, message = RECORDS[case]
    values = {LAST[name] if key == "last" else key: value for key, value in values.items()}
    if {"_at_last", "_time_utc"} & {*values} and name != "forecast":
        pytest.skip("the stream has no times")
    crafted = tmp_path / "crafted.npz"
    states.with_record(crafted, stream, states.entries_of(path), **values)
    before = stream.record()
    with pytest.raises(ValueError, match=message) as caught:
        stream.load(crafted)
    assert str(crafted) in str(caught.value)
    jax.tree.map(np.testing.assert_array_equal, stream.record(), before)
    assert stream.num_steps == 5


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_file_is_refused(saved, case, tmp_path):
    """By a ValueError that names the file, and the stream stays as it is."""
    stream, path = saved
    write, message = CRAFTED[case]
    crafted = tmp_path / "crafted.npz"
    write(crafted, states.entries_of(path))
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(stream._stream.state)]
    with pytest.raises(ValueError, match=message) as caught:
        stream.load(crafted)
    assert str(crafted) in str(caught.value) and len(str(caught.value)) < 1000
    for leaf, old in zip(jax.tree.leaves(stream._stream.state), before, strict=True):
        np.testing.assert_array_equal(leaf, old)
    assert stream.num_steps == 5


def test_a_file_that_cannot_be_read(saved, tmp_path):
    stream, _ = saved
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        stream.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        stream.load(tmp_path / "nothing")


def test_a_state_that_failed_is_not_saved(saved, tmp_path):
    """The file before stays."""
    _, path = saved
    state = {"sum": np.full(3, np.nan, np.float32)}
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"the state holds NaN in sum, so .* was not written"):
        inference.save_state(path, state, {})
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="the name 'format' of metadata is reserved"):
        inference.save_state(path, {}, {"format": 3})
    with pytest.raises(ValueError, match="expected at most 10,000 arrays"):
        inference.save_state(path, {}, {"text": "x" * 10**6})


def test_numbers_that_numpy_does_not_know(tmp_path):
    """bfloat16, as caches may have it, is raw bytes in an .npz file."""
    state = {"key": jax.numpy.ones((2, 3), "bfloat16")}
    inference.save_state(tmp_path / "state.npz", state, {})
    again, _ = inference.load_state(tmp_path / "state.npz", state)
    assert again["key"].dtype == "bfloat16" and bool((again["key"] == 1).all())


def test_a_file_of_more_than_4_gib_ends_in_64_bits(tmp_path, monkeypatch):
    """Here, of more than 100 bytes."""
    state = {"sum": np.arange(100, dtype=np.float32)}
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    inference.save_state(tmp_path / "state.npz", state, {"who": 1})
    monkeypatch.undo()
    content = (tmp_path / "state.npz").read_bytes()
    assert b"PK\x06\x06" in content and b"PK\x06\x07" in content
    again, facts = inference.load_state(tmp_path / "state.npz", state)
    np.testing.assert_array_equal(again["sum"], state["sum"])
    assert facts == {"who": 1}
    at = content.index(b"PK\x06\x06") + 32
    (tmp_path / "state.npz").write_bytes(content[:at] + b"\xff" * 7 + content[at + 7 :])
    with pytest.raises(ValueError, match="contains more than 10,000 entries"):
        inference.load_state(tmp_path / "state.npz", state)


def test_the_command_shows_what_a_file_holds(name, saved, tmp_path, capsys):
    _, path = saved
    shown = dict(line.split(None, 1) for line in succeed(capsys, "state", str(path)).splitlines())
    assert shown["task"] == name and shown["mechanism"] == "aaren"
    assert shown["rows"] == shown["num_steps"] == "5"
    assert shown["file"].endswith("format 3") and shown["arrays"].endswith("bytes")
    if name == "forecast":
        assert shown["time"] == "2016-07-01T04:00:00"
    facts = states.facts_of(states.entries_of(path)) | {"run": "\x1b[2J", "deep": [[1] * 1000]}
    states.with_facts(tmp_path / "odd.npz", states.entries_of(path), facts)
    assert "\x1b" not in succeed(capsys, "state", str(tmp_path / "odd.npz"))
    entries, content = states.entries_of(path), bytearray(path.read_bytes())
    content[content.index(entries[floats(entries)]) + 130] ^= 1
    (tmp_path / "odd.npz").write_bytes(content)
    assert "is no state file, or is damaged" in fail(capsys, "state", str(tmp_path / "odd.npz"))
    assert cli.main(["state", str(tmp_path / "nothing.npz")]) == 2


# -- two processes -------------------------------------------------------------------------

WRITER = """
import sys
import numpy as np
from flax_linattn import inference
folder, me, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
state = {"a": np.full(50_000, me, np.float32), "b": np.full(7, me, np.int32)}
inference.save_state(f"{folder}/warm-{me}", state, {})
print("ready", flush=True)
sys.stdin.readline()
for i in range(rounds):
    for number in range(30):
        inference.save_state(f"{folder}/{i}.npz", state, {"who": me, "number": number})
"""


@pytest.mark.slow
def test_two_processes_that_save_to_one_file_leave_it_whole(tmp_path):
    """Whoever reads it meanwhile finds one record or the other, never parts of both.

    Fast is ``tests/test_storage.py``: writers share no unfinished file, and replace the whole.
    """
    rounds = 20
    like = {"a": np.zeros(50_000, np.float32), "b": np.zeros(7, np.int32)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(me), str(rounds)], **pipes)
        for me in (1, 2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.close()
    reads = {1: 0, 2: 0}
    while any([writer.poll() is None for writer in writers]):
        for path in sorted(tmp_path.glob("*.npz"))[-2:]:
            state, facts = inference.load_state(path, like)
            assert all((leaf == facts["who"]).all() for leaf in state.values())
            reads[facts["who"]] += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(list(tmp_path.iterdir())) == rounds + 2  # nothing unfinished is left
    print(f"{rounds} files, {sum(reads.values())} reads, of the one and the other: {reads}")
    for writer in writers:
        writer.stdout.close()


@pytest.mark.slow
def test_two_streams_on_one_state(tmp_path):
    """The second is refused while the first one runs; who reads the file finds it whole."""
    run_dir, state = tmp_path / "run", tmp_path / "state.npz"
    small = [*("--features", "8", "--num-layers", "1", "--num-heads", "2", "--epochs", "1")]
    assert cli.main(["train", "classify", "--run", str(run_dir), *small]) == 0
    reader = states.make_stream(tasks.load_run(run_dir))
    lines, reads, rows = states.lines_of("classify", 12), 0, 0
    args = ["stream", str(run_dir), "--state", str(state)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for _ in range(20):
        with command_line(*args, **pipes) as first:
            assert first.stdin is not None and first.stdout is not None
            first.stdin.write(lines[0] + "\n")
            first.stdin.flush()
            assert first.stdout.readline().startswith("step,")
            first.stdout.readline()
            with command_line(*args, **pipes) as second:
                assert second.stderr is not None
                for number in range(60):
                    first.stdin.write(("" if number == 40 else lines[number % 12]) + "\n")
                    first.stdin.flush()
                    if number != 40:
                        first.stdout.readline()
                    reader.load(state)
                    assert reader.num_rows >= rows
                    reads, rows = reads + 1, reader.num_rows
                assert second.wait(60) == 2
                assert "another process uses the state" in second.stderr.read()
            first.stdin.close()
            first.stdout.read()
            assert first.wait(60) == 0
    reader.load(state)
    assert reader.num_rows == 20 * 61
    print(f"20 rounds, {reads} reads")


@pytest.mark.parametrize("count", [3, 7, 2**31])
def test_the_counts_of_a_patch_model_are_those_of_its_stream(tmp_path, count):
    """Of its moments, of its phases, and of the record, whichever is wrong."""
    stream = states.make_stream(states.untrained_run("forecast", model="patch", patch_length=3))
    states.feed(stream, states.lines_of("forecast", 5))
    path, crafted, state = tmp_path / "state.npz", tmp_path / "crafted.npz", stream._state()
    stream.save(path)
    entries = states.entries_of(path)
    facts, written = states.facts_of(entries), inference.describe_state(path).metadata
    states.with_record(path, stream, entries, num_steps=count)
    states.with_facts(crafted, states.entries_of(path), facts | {"num_steps": count, "rows": count})
    model = state["model"]
    others = [
        model._replace(moments=model.moments._replace(num_tokens=model.moments.num_tokens + 1)),
        model._replace(phases=(model.phases[0].at[0, 1, 0].add(1), *model.phases[1:])),
        model._replace(recent=model.recent.at[0, 0, 0].set(np.inf)),
    ]
    for other in others:
        inference.save_state(path, state | {"model": other}, written)
        with pytest.raises(ValueError, match=r"expected (a state after|finite numbers)"):
            stream.load(path)
    with pytest.raises(ValueError, match=r"expected (at least 5 observations|a state after)"):
        stream.load(crafted)


def test_the_facts_of_a_state_are_those_of_its_record(saved, tmp_path):
    stream, path = saved
    entries = states.entries_of(path)
    for name in ("num_steps", "rows"):
        crafted = tmp_path / f"{name}.npz"
        states.with_facts(crafted, entries, states.facts_of(entries) | {name: 6})
        with pytest.raises(ValueError, match=f"expected {name} 5, got 6"):
            stream.load(crafted)


def test_a_lock_is_that_of_the_file_behind_a_link(classify_run, tmp_path, capsys):
    state, link = tmp_path / "state.npz", tmp_path / "link.npz"
    link.symlink_to(state)
    lines = tmp_path / "lines.csv"
    lines.write_text("\n".join([*states.lines_of("classify", 3), ""]))
    args = ["stream", str(classify_run), "--input", str(lines), "--state"]
    succeed(capsys, *args, str(link))
    assert link.is_symlink() and state.is_file()
    with file_lock(f"{state}.lock"):
        assert "another process uses" in fail(capsys, *args, str(link))


def test_a_power_loss_leaves_each_row_that_was_printed(classify_run, tmp_path, monkeypatch, capsys):
    state, lines, printed, found = tmp_path / "new" / "state.npz", tmp_path / "lines.csv", [], []
    lines.write_text("\n".join([*states.lines_of("classify", 5), ""]))
    power_loss, write = PowerLoss(tmp_path, monkeypatch), sys.stdout.write

    def check(text):
        printed.extend(text.strip().splitlines())  # print writes its newline separately
        num_saved = inference.describe_state(state).metadata["rows"]
        found.append((power_loss.lost(state), num_saved - len(printed[1:])))
        return write(text)

    monkeypatch.setattr(sys.stdout, "write", check)
    monkeypatch.setattr("flax_linattn.tasks.stream.MAX_ROWS_PER_SAVE", 2)
    succeed(capsys, "stream", str(classify_run), "--input", str(lines), "--state", str(state))
    assert len(printed) == 1 + 5 and found == [([], 0)] * 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("durability", "most_lost"), [("before-output", 0), ("after-output", 1), ("every-5", 5)]
)
def test_kills_lose_no_more_answered_rows_than_promised(
    classify_run, tmp_path, durability, most_lost, kills=5
):
    """Rows come one at a time or in bursts, and the kill at any moment."""
    state, random = tmp_path / "state.npz", np.random.default_rng(0)
    reader = states.make_stream(tasks.load_run(classify_run))
    lines, saved, lost = states.lines_of("classify", 12), 0, []
    args = ["stream", str(classify_run), "--state", str(state), "--durability", durability]
    for _ in range(kills):
        with command_line(*args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(lines[0] + "\n")
            process.stdin.flush()
            answers = [process.stdout.readline(), process.stdout.readline()]  # with the header
            threading.Timer(random.uniform(0, 0.2), process.kill).start()
            with contextlib.suppress(BrokenPipeError):
                while process.poll() is None:
                    burst = random.choice([1, 1, 20])
                    process.stdin.writelines(f"{lines[1]}\n" for _ in range(burst))
                    process.stdin.flush()
                    time.sleep(random.choice([0, 0, 0.005]))
            answers += [line for line in process.stdout if line.endswith("\n")]
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        before = saved
        if state.is_file():
            reader.load(state)
            saved = reader.num_rows
        lost.append(len(answers) - 1 - (saved - before))
    print(f"{durability}: rows answered less rows saved, a kill each: {lost}")
    assert max(lost) <= most_lost
