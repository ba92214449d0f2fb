"""Language models on text: their scores, baselines, streams, and runs that end or are refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import cli, tasks
from flax_linattn.data.texts import TokenWindows, train_tokenizer
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.text import baselines, evaluate
from flax_linattn.tasks.text.stream import TextStream
from flax_linattn.training import Parallel, Session
from tests.contract.tolerances import assert_same_bits
from tests.nn.cases import call
from tests.tasks.commands import fail, fast, no_drawing, one_line, succeed

TEXT = b"".join(
    b"%d. The cat number %d sat on the mat, \xc3\xa9t\xc3\xa9: ZZZZZ!!!\n" % (n, n * n % 7)
    for n in range(200)
)
TINY = [
    *("--features", "8", "--num-layers", "1", "--num-heads", "2", "--hidden-features", "8"),
    *("--short-conv", "2", "--mechanism", "aaren", "--context", "16", "--batch-size", "16"),
    *("--steps", "4", "--validate-every", "2", "--schedule", "constant", "--parallel", "none"),
]
SIZES = {
    "features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8, "context": 16,
    "batch_size": 3, "short_conv": 2,
}  # fmt: skip
HYBRID = ["aaren", "softmax:window=5"]

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Token files of a module."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "cats.txt"
    path.write_bytes(TEXT)
    return path


@pytest.fixture(scope="module")
def run_dir(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "cats"
    with no_drawing():
        assert cli.main(["train", "text", "--file", str(file), "--run", str(folder), *TINY]) == 0
    return folder


@pytest.fixture(scope="module")
def bpe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    path.write_text(train_tokenizer([TEXT], 300).data)
    return path


def table(path, documents):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def new_run(file, **options):
    """A run with a new model whose logits differ much."""
    task = tasks.get_task("text")
    if "mechanism" in options and isinstance(options["mechanism"], list):
        options["num_layers"] = len(options["mechanism"])
    config = task.Config.of(**SIZES | {"file": str(file)} | options)
    corpus = task.load(config)
    data_spec = task.describe(corpus, config)
    model = task.model(config, data_spec)
    embedding = nnx.state(model.backbone.input_embedding, nnx.Param)
    nnx.update(model.backbone.input_embedding, jax.tree.map(lambda x: 2 * x, embedding))
    return Run(task, config, data_spec, model, corpus)


def in_float64(logits, targets):
    """Bits, confidence and whether it is right, by NumPy."""
    logits = np.asarray(logits, np.float64)
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    own = np.take_along_axis(p, np.asarray(targets)[..., None], -1)[..., 0]
    return -np.log2(own), p.max(-1), logits.argmax(-1) == targets


def brute_copies(tokens, context):
    """For each token the distance to the last occurrence of it and the tokens before it."""
    tokens, distances = list(tokens), []
    for place in range(len(tokens)):
        passage = tokens[max(place - context, 0) : place + 1]
        found = [
            place - before
            for before in range(context, place)
            if place >= context and tokens[before - context : before + 1] == passage
        ]
        distances.append(min(found, default=0))
    return distances


def error_of(confidence, right):
    bins = np.minimum(np.floor(confidence * 10), 9)
    parts = [bins == number for number in range(10)]
    return sum(abs((confidence[own] - right[own]).sum()) for own in parts) / len(right)


@pytest.mark.parametrize("documents", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_report_is_that_of_the_logits(documents, file, tmp_path):
    if documents:
        file = table(tmp_path / "a.jsonl", TEXT.decode().splitlines(keepends=True))
    run = new_run(file, mechanism="aaren", test_tokens=400)
    windows = run.task.test_batches(run, None)
    tokens = np.asarray(windows.tokens, np.int64)
    report = evaluate.report_values(run, windows)
    ids = np.cumsum(tokens == 256)[None, :-1] if documents else None
    whole = call(run.model, tokens[None, :-1].astype(np.int32), segment_ids=ids)
    bits, confidence, right = (x[0] for x in in_float64(whole, tokens[None, 1:]))
    separate = []
    for start in range(0, len(tokens) - 1, 16):
        part = tokens[start : start + 17]
        padded = np.pad(part, (0, 17 - len(part)))[None].astype(np.int32)
        own = None if ids is None else np.cumsum(padded[:, :-1] == 256, axis=1)
        logits = call(run.model, padded[:, :-1], segment_ids=own)
        separate.append([x[0, : len(part) - 1] for x in in_float64(logits, padded[:, 1:])])
    window_bits, window_confidence, window_right = map(np.concatenate, zip(*separate, strict=True))
    num_bytes = int((tokens[1:] < 256).sum())
    assert bits.std() > 0.5 and 0.05 < right.mean() < 0.95  # the model is no uniform one
    assert len(report["calibration"]) > 4
    assert (report["num_test_tokens"], report["num_test_bytes"]) == (399, num_bytes)
    assert report["carries_state"]
    for name, value in {
        "test_bits_per_byte": bits.sum() / num_bytes,
        "test_window_bits_per_byte": window_bits.sum() / num_bytes,
        "test_bits_per_token": bits.mean(),
        "test_perplexity": 2 ** bits.mean(),
        "test_accuracy": right.mean(),
        "test_calibration_error": error_of(confidence, right),
    }.items():
        assert report[name] == pytest.approx(value, rel=2e-5), name
    place = np.arange(399) % 16
    assert [row["first_position"] for row in report["positions"]] == [0, 1, 3, 7, 15]
    for row, stop in zip(report["positions"], (1, 3, 7, 15, 31), strict=True):
        own = (place >= row["first_position"]) & (place < stop)
        assert row["tokens"] == own.sum()
        assert row["bits_per_token"] == pytest.approx(window_bits[own].mean(), rel=2e-5)
        assert row["perplexity"] == pytest.approx(2 ** window_bits[own].mean(), rel=1e-4)
        assert row["accuracy"] == pytest.approx(window_right[own].mean())
        error = error_of(window_confidence[own], window_right[own])
        assert row["calibration_error"] == pytest.approx(error, abs=1e-5)
    for row in report["calibration"]:
        own = np.minimum(np.floor(confidence * 10), 9) == round(10 * row["confidence_from"])
        assert row["tokens"] == own.sum()
        assert row["confidence"] == pytest.approx(confidence[own].mean(), rel=1e-5)
        assert row["accuracy"] == pytest.approx(right[own].mean())
    distance = np.array(brute_copies(tokens.tolist(), evaluate.COPY_CONTEXT))[1:]
    assert report["copies"] and (distance > 0).sum() == sum(r["tokens"] for r in report["copies"])
    for row in report["copies"]:
        own = (distance >= row["distance_from"]) & (distance < 2 * row["distance_from"])
        assert row["tokens"] == own.sum()
        assert row["accuracy"] == pytest.approx(right[own].mean())
        assert row["bits_per_token"] == pytest.approx(bits[own].mean(), rel=2e-5)


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 5))
def test_copies_are_those_of_a_search(tokens, context):
    found = evaluate.copy_distances(np.array(tokens, np.uint16), context)
    assert found.tolist() == brute_copies(tokens, context)


def check_carried(run, size, chunk):
    """Windows of one window, the state carried over, and a stream give the same bits."""
    corpus = np.tile(np.asarray(run.data.train), -(-size // len(run.data.train)))[:size]
    begin = run.data_spec.begin
    one = TokenWindows(corpus, 1, length=size - 1, begin=begin, seed=None)
    whole = evaluate.score_windows(run, one)
    carried = evaluate.score_carried(run, one, chunk)
    assert evaluate.carries_state(run)
    assert len(carried.bits) == size - 1 and carried.bits.std() > 0.5
    np.testing.assert_allclose(carried.bits, whole.bits, atol=1e-4)
    assert abs(np.mean(carried.bits - whole.bits, dtype=np.float64)) < 1e-4
    assert abs(np.mean(carried.confidence - whole.confidence)) < 1e-5
    assert np.mean(carried.is_right != whole.is_right) < 1e-3
    documents = [corpus] if begin is None else np.split(corpus, np.flatnonzero(corpus == begin))
    documents = [part for part in documents if part.size]
    place = 0
    for part in documents[:3]:
        text = bytes(part[part < 256].astype(np.uint8))
        stream = TextStream(run)
        lines = text.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
        if not text.endswith(b"\n"):
            *lines, _ = lines
        rows = [stream.cells(line) for line in stream.parse(lines)]
        num_tokens = sum(row[1] for row in rows)
        total = sum(float(row[2]) for row in rows)
        if begin is None:  # of the first token a stream knows nothing
            total -= np.log2(257)
            expected = carried.bits[: num_tokens - 1]
        else:  # the bits of its begin token are no stream's
            expected = carried.bits[place : place + num_tokens]
        assert [row[0] for row in rows] == [*range(1, len(rows) + 1)]
        assert abs(total - expected.sum(dtype=np.float64)) / num_tokens < 1e-4
        place += len(part)


MECHANISMS = {
    "aaren": "aaren", "gated_delta": "gated_delta", "gated_linear": "gated_linear",
    "window": "softmax:window=9", "hybrid": HYBRID,
}  # fmt: skip


@pytest.mark.parametrize("name", fast(MECHANISMS, "hybrid"))
@pytest.mark.parametrize("documents", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_state_carried_over_a_text_is_exact(name, documents, file, tmp_path):
    if documents:
        parts = TEXT.decode().splitlines(keepends=True)
        file = table(tmp_path / "a.jsonl", ["".join(parts[n : n + 7]) for n in range(0, 200, 7)])
    run = new_run(file, mechanism=MECHANISMS[name])
    check_carried(run, 3000, 256)


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_state_carried_over_a_long_text_is_exact(name, file):
    check_carried(new_run(file, mechanism=MECHANISMS[name]), 100_000, evaluate.CHUNK_SIZE)


@pytest.mark.parametrize("mechanism", ["softmax", "aft"])
def test_a_growing_cache_begins_again_at_each_window(mechanism, file):
    """The biases of AFT have the length of a window, which no option needs to repeat."""
    run = new_run(file, mechanism=mechanism, test_tokens=200)
    assert not evaluate.carries_state(run)
    report = evaluate.report_values(run, run.task.test_batches(run, None))
    assert report["test_bits_per_byte"] == report["test_window_bits_per_byte"]
    assert not report["carries_state"]
    bits = [row["bits"] for _, row in run.task.predict(run, None).iterrows()]
    assert sum(bits) / report["num_test_bytes"] == pytest.approx(report["test_bits_per_byte"])


def test_baselines_of_a_known_text(file, capsys, monkeypatch):
    run = new_run(file, mechanism="aaren")
    tokens = np.asarray(run.data.test)
    values = baselines.test_baselines(run, tokens)
    names = ("ppmd", "xz", "zstd", "gzip", "unigram")
    assert set(values) == {f"{name}_bits_per_byte" for name in names}
    counts = np.ones(256)
    for byte in bytes(run.data.train):
        counts[byte] += 1
    p = counts / counts.sum()
    expected = np.mean([-np.log2(p[byte]) for byte in bytes(tokens[1:])])
    assert values["unigram_bits_per_byte"] == pytest.approx(expected, rel=1e-12)
    # A text that says the same again and again.
    assert all(values[f"{name}_bits_per_byte"] < expected / 1.5 for name in names[:-1])
    assert capsys.readouterr().err == ""
    constant = b"a" * 4000
    for name, (compress, _) in baselines.COMPRESSORS.items():
        assert 0 <= baselines.bits_per_byte(compress, constant, constant) < 0.1, name
    noise = np.random.default_rng(0).integers(256, size=(2, 20_000), dtype=np.uint8)
    for compress, _ in baselines.COMPRESSORS.values():
        assert baselines.bits_per_byte(compress, *map(bytes, noise)) > 7.9
    monkeypatch.setattr(baselines, "MAX_TRAIN_BYTES", 1000)
    last = baselines.test_baselines(run, tokens)
    assert "the baselines use only the last 1 kB" in capsys.readouterr().err
    assert last["xz_bits_per_byte"] > values["xz_bits_per_byte"]
    find_spec = baselines.importlib.util.find_spec
    monkeypatch.setattr(
        baselines.importlib.util,
        "find_spec",
        lambda name: None if name in ("zstandard", "pyppmd") else find_spec(name),
    )
    few = baselines.test_baselines(run, tokens)
    assert set(few) == {f"{name}_bits_per_byte" for name in ("xz", "gzip", "unigram")}
    message = capsys.readouterr().err
    assert "zstandard and pyppmd are not installed: pip install 'flax-linattn[text]'" in message


def test_a_text_without_copies_has_no_table_of_them(run_dir, tmp_path, capsys):
    path = tmp_path / "short.txt"
    path.write_bytes(b"short\n")
    printed = succeed(capsys, "evaluate", str(run_dir), "--test-file", str(path))
    assert "first_position" in printed and "distance_from" not in printed


def test_predictions_of_lines_and_documents(run_dir, file, tmp_path):
    run = tasks.load_run(run_dir)
    windows = run.task.test_batches(run, None)
    rows = run.task.predict(run, None)
    text = bytes(np.asarray(windows.tokens))
    assert list(rows) == ["line", "bytes", "bits", "bits_per_byte"]
    assert rows["bytes"].tolist() == [len(line) for line in text.splitlines(keepends=True)]
    bits = evaluate.score_carried(run, windows).bits
    assert rows["bits"].sum() == pytest.approx(bits.sum(dtype=np.float64), rel=1e-6)
    first = text.index(b"\n")
    assert rows["bits"][0] == pytest.approx(bits[:first].sum(), rel=1e-5)
    np.testing.assert_allclose(rows["bits_per_byte"], rows["bits"] / rows["bytes"])
    # A table, compressed or not, and the same text in one file.
    parts = TEXT.decode().splitlines(keepends=True)[:5]
    (tmp_path / "a.txt").write_text("".join(parts))
    joined = run.task.predict(run, tmp_path / "a.txt")
    as_rows = run.task.predict(run, table(tmp_path / "a.jsonl", parts))
    assert as_rows.equals(joined) and len(joined) == 5


def test_documents_are_scored_by_themselves(tmp_path):
    parts = TEXT.decode().splitlines(keepends=True)
    path = table(tmp_path / "a.jsonl", parts)
    run = new_run(path, mechanism="aaren")
    rows = run.task.predict(run, None)
    assert list(rows) == ["document", "bytes", "bits", "bits_per_byte"]
    windows = run.task.test_batches(run, None)
    assert len(rows) == (np.asarray(windows.tokens) == 256).sum()
    bits = evaluate.score_carried(run, windows).bits
    assert rows["bits"].sum() == pytest.approx(bits.sum(dtype=np.float64), rel=1e-6)
    assert rows["bytes"].sum() == (np.asarray(windows.tokens) < 256).sum()
    alone = tmp_path / "one.txt"  # a text is one document for this run
    alone.write_text(parts[0])
    (row,) = run.task.predict(run, alone).to_dict("records")
    assert row["document"] == 1 and row["bytes"] == len(parts[0].encode())
    stream = TextStream(run)
    (line,) = stream.parse([parts[0].removesuffix("\n")])
    assert row["bits"] == pytest.approx(float(stream.cells(line)[2]), rel=1e-5)


def test_a_stream_of_any_bytes_is_exact(run_dir, tmp_path, capsys):
    """In a file as in a pipe, and as a prediction of the file."""
    content = b"caf\xe9\r\n\xff\xfe a\n\xed\xa0\x80\n\n# no comment\n"
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    out = succeed(capsys, "stream", str(run_dir), "--input", str(path))
    rows = [line.split(",") for line in out.splitlines()[1:]]
    assert [int(row[1]) for row in rows] == [len(x) + 1 for x in content.split(b"\n")[:-1]]
    run = tasks.load_run(run_dir)
    expected = run.task.predict(run, path)
    first = np.log2(257)
    bits = np.array([float(row[2]) for row in rows]) - [first, *[0] * (len(rows) - 1)]
    np.testing.assert_allclose(bits, expected["bits"], atol=1e-2)


def test_a_stream_goes_on_within_a_line_of_any_length(run_dir, tmp_path, capsys):
    lines = [b"short\n", b"a long line, " * 40 + b"\n", b"\n", b"x" * 64 + b"\n", b"y" * 63 + b"\n"]
    path, state = tmp_path / "a.txt", tmp_path / "state.npz"
    path.write_bytes(b"".join(lines))
    whole = succeed(capsys, "stream", str(run_dir), "--input", str(path)).splitlines()[1:]
    parts = []
    for line in lines:
        path.write_bytes(line)
        args = ["stream", str(run_dir), "--input", str(path), "--state", str(state)]
        parts += succeed(capsys, *args).splitlines()[1:]
    assert parts == whole


@pytest.fixture(scope="module")
def bpe_run(file, bpe_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "bpe"
    tokenizer = tmp_path_factory.mktemp("own") / "tokenizer.json"
    tokenizer.write_bytes(bpe_file.read_bytes())
    args = ["--file", str(file), "--tokenizer", str(tokenizer), "--steps", "1"]
    with no_drawing():
        assert cli.main(["train", "text", "--run", str(folder), *TINY, *args]) == 0
    tokenizer.unlink()
    return folder


def test_a_run_holds_its_tokenizer(bpe_run, file, tmp_path, capsys):
    """The file of the tokenizer is gone; only training needs it."""
    stored = json.loads((bpe_run / "test.json").read_text())
    report = tasks.evaluate_run(bpe_run)
    assert report["test_bits_per_byte"] == stored["test_bits_per_byte"]
    assert report["num_test_bytes"] > report["num_test_tokens"]
    assert report["unigram_bits_per_byte"] == stored["unigram_bits_per_byte"]
    path = tmp_path / "a.txt"
    path.write_bytes(b"a line\ncaf\xe9\nb\n")
    message = fail(capsys, "stream", str(bpe_run), "--input", str(path))
    assert (
        f"{path}:2: expected UTF-8, which tokenizers need, got the byte 0xe9 at byte 3" in message
    )
    message = fail(
        capsys, "predict", str(bpe_run), "--input", str(path), "--out", str(tmp_path / "b.csv")
    )
    assert f"{path}: expected UTF-8" in message and "at byte 10 of the text" in message
    assert not (tmp_path / "b.csv").exists()


def test_another_tokenizer_does_not_continue_a_run(
    run_dir, bpe_run, bpe_file, file, tmp_path, capsys
):
    new = ["train", "text", "--run", str(tmp_path / "new"), "--parallel", "none", "--steps", "1"]
    message = fail(capsys, *new, "--from", str(run_dir), "--tokenizer", str(bpe_file))
    assert (
        "expected the tokenizer of the run to continue (bytes, 257 tokens), got another" in message
    )
    other = tmp_path / "other.json"
    other.write_text(train_tokenizer([b"other text"], 270).data)
    message = fail(capsys, *new, "--from", str(bpe_run), "--tokenizer", str(other))
    assert "expected the tokenizer of the run to continue (tokenizers, " in message
    assert "pass the folder of that run as --tokenizer, and --vocabulary 0" in one_line(message)
    assert not (tmp_path / "new").exists()


def test_the_tokenizer_of_a_run_continues_it_on_another_text(bpe_run, tmp_path, capsys, no_steps):
    """A trained vocabulary is in the folder of its run alone."""
    path, folder = tmp_path / "b.txt", tmp_path / "new"
    path.write_bytes(TEXT.replace(b"cat", b"dog"))
    args = ["train", "text", "--run", str(folder), "--parallel", "none", "--file", str(path)]
    succeed(capsys, *args, "--from", str(bpe_run), "--tokenizer", str(bpe_run))
    before, after = (tasks.load_run(of).data_spec for of in (bpe_run, folder))
    assert before.tokenizer_data == after.tokenizer_data and before.checksum != after.checksum
    message = fail(capsys, *args[:2], "--file", str(path), "--tokenizer", str(tmp_path), *TINY)
    assert f"expected a tokenizer at {tmp_path}, found a folder there" in message


BAD = {
    "missing": (["--file", "gone.txt"], "gone.txt, found nothing there"),
    "none": ([], "expected a text to train on, got none; pass"),
    "empty": (["--file", "empty.txt"], "expected a training text of at least 2 tokens, got 0"),
    "short": (["--file", "short.txt"], "expected a validation text of at least 2 tokens, got 0"),
    "context": (["--file", "latin.txt", "--context", "1024"], "the context of 1024 tokens"),
    "column": (["--file", "a.jsonl", "--column", "b"], "a.jsonl:1: expected a string 'b', found"),
    "utf-8": (["--file", "latin.txt", "--vocabulary", "300"], "latin.txt: expected UTF-8"),
    "tokenizer": (["--file", "latin.txt", "--tokenizer", "short.txt"], "short.txt, got neither"),
    "no tokenizer": (["--file", "latin.txt", "--tokenizer", "no.json"], "expected a tokenizer at"),
    "two": (
        ["--file", "latin.txt", "--tokenizer", "no.json", "--vocabulary", "300"],
        "--tokenizer and --vocabulary cannot be combined",
    ),
    "vocabulary": (["--file", "latin.txt", "--vocabulary", "9"], "vocabulary"),
    "split": (["--file", "latin.txt", "--split", "1/0/1"], "expected split as three numbers"),
    "mechanism": (["--file", "latin.txt", "--mechanism", "none_such"], "none_such"),
    "not causal": (["--file", "latin.txt", "--mechanism", "nystrom"], "causal"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_bytes(b"")
    Path("short.txt").write_bytes(b"a text\n" * 2)
    Path("latin.txt").write_bytes(b"caf\xe9\n" * 200)
    Path("a.jsonl").write_text('{"text": "a"}\n' * 50)
    args, expected = BAD[name]
    message = fail(capsys, "train", "text", "--run", "new", *TINY, *args)
    assert "Traceback" not in message and not Path("new").exists()
    assert expected in one_line(message)


def parameters(folder):
    return nnx.state(tasks.load_run(folder, checkpoint="last").model)


@pytest.mark.slow
def test_a_run_resumes_in_the_middle_of_an_epoch(file, tmp_path, capsys):
    """With documents, from a table; the windows of an epoch are far more than the steps."""
    path = table(tmp_path / "a.jsonl", TEXT.decode().splitlines(keepends=True))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    args = ["train", "text", "--file", str(path), *TINY, "--run"]
    succeed(capsys, *args, str(whole), "--steps", "6")
    for steps in ("1", "3", "6"):
        resumed = ["--resume"] if steps != "1" else []
        succeed(capsys, *args, str(parts), "--steps", steps, *resumed)
    assert_same_bits(parameters(parts), parameters(whole))
    reports = [json.loads((of / "test.json").read_text()) for of in (whole, parts)]
    for report in reports:
        report.pop("train_seconds")
    assert reports[0] == reports[1]


def test_a_changed_text_is_not_resumed(file, tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    run = ["train", "text", "--run", str(tmp_path / "run"), "--file", str(path), *TINY]
    succeed(capsys, *run, "--steps", "1")
    path.write_bytes(TEXT.replace(b"cat", b"dog"))
    assert "the data differ from the data that the run" in fail(capsys, *run, "--resume")
    message = fail(capsys, "evaluate", str(tmp_path / "run"))
    assert "the data of the run have changed since training" in message


@pytest.mark.slow
def test_learned_positions_limit_a_text(file, tmp_path, capsys):
    folder = tmp_path / "run"
    args = ["--file", str(file), "--run", str(folder), *TINY, "--position", "learned"]
    succeed(capsys, "train", "text", *args)
    report = tasks.evaluate_run(folder)
    assert not report["carries_state"] and report["stream_max_error"] < 1e-4
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456\n0123456\nx\n")
    assert cli.main(["stream", str(folder), "--input", str(path)]) == 2
    streams = capsys.readouterr()
    assert len(streams.out.splitlines()) == 3
    assert f"{path}:3: the text is longer than 16 tokens" in streams.err
    message = fail(capsys, "stream", str(folder), "--input", str(path), "--max-length", "17")
    assert "16" in message and "--max-length" in message


def test_a_line_without_tokens_costs_nothing(file, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(tmp_path / "words.json"))
    task = tasks.get_task("text")
    config = task.Config.of(file=file, tokenizer=tmp_path / "words.json", **SIZES)
    spec = task.describe(task.load(config), config)
    stream = TextStream(tasks.Run(task, config, spec, task.model(config, spec)))
    rows = [stream.cells(line) for line in (b"a\n", b"\n", b"b\n")]
    assert rows[1] == [2, 1, 0.0, 0.0] and rows[2][2] > 0


@pytest.mark.slow
def test_two_seeds_at_once(file, tmp_path, capsys):
    folder = tmp_path / "runs"
    succeed(
        capsys, "train", "text", "--file", str(file), "--run", str(folder), *TINY, "--runs", "2"
    )
    stored = json.loads((folder / "test.json").read_text())
    assert [row["seed"] for row in stored["runs"]] == [0, 1]
    assert stored["test_bits_per_byte"] == pytest.approx(
        np.mean([row["test_bits_per_byte"] for row in stored["runs"]])
    )
    one = tmp_path / "one"
    succeed(capsys, "train", "text", "--file", str(file), "--run", str(one), *TINY, "--seed", "1")
    alone = json.loads((one / "test.json").read_text())["test_bits_per_byte"]
    assert stored["runs"][1]["test_bits_per_byte"] == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism, mesh", [("aaren", "data=8"), ("aaren", "data=2,seq=4"), ("gated_delta", "seq=2")]
)
@pytest.mark.parametrize("documents", [False, True])
def test_devices_train_the_same_model(mechanism, mesh, documents, file, tmp_path):
    if documents:
        file = table(tmp_path / "a.jsonl", TEXT.decode().splitlines(keepends=True))
    options = {**SIZES, "batch_size": 16, "file": str(file), "mechanism": mechanism, "steps": 3}
    config = tasks.get_task("text").Config.of(**options, schedule="constant", test_tokens=300)
    values = []
    for number, parallel in enumerate((Parallel("none"), Parallel("jit", mesh))):
        session = Session(tmp_path / f"{number}", progress=False, parallel=parallel)
        values.append(tasks.train("text", config, session))
    for name in ("test_bits_per_byte", "test_window_bits_per_byte", "test_accuracy"):
        assert values[1][name] == pytest.approx(values[0][name], rel=1e-3)


def test_windows_that_devices_cannot_split(file, tmp_path, capsys):
    args = ["train", "text", "--file", str(file), "--run", str(tmp_path / "run"), *TINY]
    message = fail(capsys, *args, "--parallel", "jit", "--mesh", "seq=2", "--context", "15")
    assert "expected a context that 2 devices can split evenly, got 15" in message
    assert "(--context, --mesh)" in message and not (tmp_path / "run").exists()
