"""Texts of language models: every kind of file gives the same tokens, once, and bad ones a line."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import threading
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from flax_linattn import storage
from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError
from flax_linattn.data.files import unpacking
from flax_linattn.data.texts import (
    ByteTokenizer,
    TextSource,
    corpus,
    load_corpus,
    split_tokens,
    train_tokenizer,
)
from flax_linattn.data.texts.corpus import SPLITS, split_names, token_folder, write_tokens

BYTES = ByteTokenizer()
TEXT = b"".join(b"line %d of a text, \xc3\xa9t\xc3\xa9\n" % number for number in range(60))
DOCUMENTS = [f"document {number}: {'é' * number}\nand a line" for number in range(20)]
PARTS = (3.0, 1.0, 1.0)
COMPRESSIONS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}


@pytest.fixture
def load(tmp_path):
    """Loads a corpus with its token files in a folder of the test."""

    def call(path, **options):
        return load_corpus(path, folder=tmp_path / "tokens", **options)

    return call


@pytest.fixture
def token_files(tmp_path):
    """The token files that were written."""
    return lambda: sorted((tmp_path / "tokens").glob("*.uint*"))


@pytest.fixture(scope="module")
def bpe():
    return train_tokenizer([TEXT], 300)


def joined(found):
    """The bytes of all parts of a corpus, with documents marked."""
    tokens = np.concatenate([found.train, found.validation, found.test])
    pieces = np.split(tokens, np.flatnonzero(tokens == BYTES.begin))
    return [BYTES.decode(piece) for piece in pieces if piece.size]


def table(path, documents, column="text"):
    """A table of documents, by the suffix of its name."""
    rows = [{"number": number, column: text} for number, text in enumerate(documents)]
    if path.suffix in (".parquet", ".pq"):
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        compress = COMPRESSIONS.get(path.suffix[1:], lambda content: content)
        path.write_bytes(compress(content))
    return path


def pack(path, files):
    """An archive of files by their names, or a folder."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    elif ".tar" in path.name:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    else:
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    return path


def test_a_plain_file_is_mapped_as_it_is(load, token_files, tmp_path):
    path = tmp_path / "my.long.txt"
    path.write_bytes(TEXT + bytes(range(256)))
    found = load(path)
    assert joined(found) == [TEXT + bytes(range(256))]
    assert found.name == "my" and not found.has_documents and not found.notes
    assert all(isinstance(part, np.memmap) for part in (found.train, found.validation, found.test))
    assert found.train.dtype == np.uint8 and token_files() == []
    size = len(TEXT) + 256
    assert len(found.train) == round(0.9 * size) and len(found.test) == size - round(0.95 * size)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_files_are_the_same_text(suffix, load, token_files, tmp_path):
    """By their first bytes, whatever their names."""
    plain, path, renamed = (tmp_path / name for name in ("a.txt", f"a.txt.{suffix}", "b.txt"))
    plain.write_bytes(TEXT)
    for each in (path, renamed):
        each.write_bytes(COMPRESSIONS[suffix](TEXT))
    expected = load(plain)
    for each in (path, renamed):
        found = load(each)
        assert not found.has_documents
        for part in ("train", "validation", "test"):
            assert getattr(found, part).tolist() == getattr(expected, part).tolist()
    assert len(token_files()) == 2
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    with pytest.raises(DataFormatError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: expected a text, plain or compressed, got a damaged one")
    assert len(token_files()) == 2


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.NDJSON", "a.jsonl.gz", "a.jsonl.xz", "a.parquet", "a.pq"]
)
def test_a_row_of_a_table_is_a_document(name, load, tmp_path):
    path = table(tmp_path / name, DOCUMENTS)
    found = load(path, ratios=PARTS)
    assert found.has_documents
    assert joined(found) == [text.encode() for text in DOCUMENTS]
    for part in (found.train, found.validation, found.test):
        assert part[0] == BYTES.begin  # no document is cut
    other = table(tmp_path / f"b{path.suffix}", DOCUMENTS, "review")
    if path.suffix != ".gz" and path.suffix != ".xz":
        assert joined(load(other, column="review", ratios=PARTS)) == joined(found)
        with pytest.raises(DataFormatError, match=r"'text', found .*review.*choose another") as bad:
            load(other)
        assert bad.value.options == ("column",)


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.txt.zst", "a.JSONL.bz2", "a.parquet.gz"])
def test_unknown_compressions_are_no_text(name, load, tmp_path):
    path = tmp_path / name
    path.write_bytes(TEXT)
    with pytest.raises(DataFormatError, match=r"found another compression; decompress the file"):
        load(path)


@pytest.mark.parametrize("name", ["train-0.parquet", "a.jsonl", "a.txt.gz", "a.ZST"])
def test_a_folder_of_tables_has_no_documents(name, load, tmp_path):
    path = pack(tmp_path / "a.zip", {f"data/{name}": TEXT, "data/other": TEXT})
    with pytest.raises(DataFormatError, match=f"a.zip!data/{name}: expected a folder or archive"):
        load(path)


@pytest.mark.parametrize("name", ["a", "a.tar", "a.tar.gz", "a.zip"])
def test_a_file_of_a_folder_is_a_document(name, load, tmp_path):
    files = {f"{number}.txt": text.encode() for number, text in enumerate(DOCUMENTS)}
    path = pack(tmp_path / name, files)
    found = load(path)
    assert found.has_documents and found.name == "a"
    assert sorted(joined(found)) == sorted(files.values())
    sizes = [int((part == BYTES.begin).sum()) for part in (found.train, found.validation)]
    assert sizes == [18, 1]
    again = pack(tmp_path / "b", files | {"z.png": b"\0", "empty.txt": b""})
    with_others = load(again)
    assert sorted(joined(with_others)) == sorted(files.values())
    assert with_others.notes == ("files other than .txt, .md and .tokens are skipped: 1",)


@pytest.mark.parametrize("name", ["a", "a.tar", "a.zip"])
def test_folders_and_files_that_are_named_after_parts(name, load, tmp_path):
    files = {
        "train/a.txt": b"first", "train/b.txt": b"second", "valid/c.txt": b"third",
        "test/d.txt": b"fourth",
    }  # fmt: skip
    found = load(pack(tmp_path / name, files))
    assert BYTES.decode(found.train) in (b"firstsecond", b"secondfirst")
    assert BYTES.decode(found.validation) == b"third" and BYTES.decode(found.test) == b"fourth"
    found = load(
        pack(tmp_path / f"b{name}", {f"wiki.{part}.tokens": part.encode() for part in SPLITS})
    )
    for part in SPLITS:
        assert BYTES.decode(getattr(found, part)) == part.encode()


@given(
    st.lists(st.text("abc/", min_size=1, max_size=5), min_size=3, max_size=40, unique=True),
    st.tuples(*[st.floats(0.1, 10)] * 3),
    st.sampled_from([(), ("train/x", "test/x"), ("train.txt", "test.txt", "dev.txt"), ("test/x",)]),
)
def test_every_file_is_in_one_part(names, ratios, more):
    names = sorted({*names, *more})
    parts = split_names(names, ratios)
    assert sorted(name for own in parts.values() for name in own) == names or "train/x" in more
    assert len({name for own in parts.values() for name in own}) == sum(map(len, parts.values()))
    assert parts == split_names(names[::-1], ratios)


@given(
    st.lists(st.sampled_from([0, 1, 9]), max_size=60),
    st.tuples(*[st.floats(0.1, 10)] * 3),
    st.sampled_from([None, 9]),
)
def test_parts_follow_each_other(tokens, ratios, begin):
    array = np.array(tokens, np.int64)
    parts = split_tokens(array, ratios, begin)
    assert np.concatenate(parts).tolist() == tokens
    places = np.cumsum([0, *map(len, parts)])
    for place, ratio in zip(places[1:3], np.cumsum(ratios)[:2] / sum(ratios), strict=True):
        cut = round(ratio * len(tokens))
        if begin is None:
            assert place == cut
        else:
            begins = [n for n in range(1, len(tokens)) if tokens[n] == begin]
            nearest = min((abs(n - cut) for n in begins), default=len(tokens) - cut)
            assert abs(place - cut) == nearest


def test_a_begin_is_found_far_away():
    tokens = np.zeros(2**20 + 50, np.uint16)
    for far in (2**20 + 40, 3):
        tokens[:] = 0
        tokens[far] = 256
        for ratio in (1e-6, 1e6):
            first, *_ = split_tokens(tokens, (ratio, 1.0, 1.0), 256)
            assert len(first) == far


def test_a_tokenizer_writes_its_tokens_once(load, token_files, tmp_path, bpe, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    found = load(path, tokenizer=bpe)
    (file,) = token_files()
    assert found.train.dtype == np.uint16 and found.tokenizer is bpe
    tokens = np.concatenate([found.train, found.validation, found.test])
    assert bpe.decode(tokens) == TEXT and (tokens == bpe.encode(TEXT)).all()
    before = file.stat().st_mtime_ns
    monkeypatch.setattr(corpus, "_write", None)  # nothing is tokenized again
    assert load(path, tokenizer=bpe, ratios=(1.0, 1.0, 1.0)).train.size
    assert file.stat().st_mtime_ns == before
    monkeypatch.undo()
    load(path, vocabulary=280)
    assert len(token_files()) == 2
    path.write_bytes(TEXT + b"more")
    longer = load(path, tokenizer=bpe)
    assert bpe.decode(np.concatenate([longer.train, longer.validation, longer.test])).endswith(
        b"more"
    )
    assert len(token_files()) == 3
    os.utime(path, ns=(0, 0))
    load(path, tokenizer=bpe)
    assert len(token_files()) == 4


def test_a_changed_file_of_a_folder_is_read_again(load, token_files, tmp_path):
    folder = pack(tmp_path / "a", {f"{part}/x.txt": part.encode() for part in SPLITS})
    load(folder)
    assert len(token_files()) == 3
    (folder / "test" / "x.txt").write_bytes(b"another")
    assert BYTES.decode(load(folder).test) == b"another"
    (folder / "test" / "y.txt").write_bytes(b" text")
    assert sorted(BYTES.decode(load(folder).test)) == sorted(b"another text")


def test_a_vocabulary_is_trained_on_the_training_text(load, tmp_path, monkeypatch):
    path, calls = tmp_path / "a.txt", []
    path.write_bytes(b"aaaa bbbb\n" * 90 + "é€\n".encode() * 30)
    train = corpus.train_tokenizer

    def note(texts, vocabulary):
        calls.append(b"".join(texts))
        return train(iter(calls[-1:]), vocabulary)

    monkeypatch.setattr(corpus, "train_tokenizer", note)
    first = load(path, vocabulary=260)
    assert load(path, vocabulary=260).tokenizer.data == first.tokenizer.data
    (used,) = calls
    limit = int(path.stat().st_size * 0.9)
    assert used == path.read_bytes()[: len(used)] and limit - 3 <= len(used) <= limit
    used.decode()  # no character is cut
    monkeypatch.setattr(corpus, "TRAINED_BYTES", 100)
    load(path, vocabulary=261)
    assert calls[-1] == path.read_bytes()[:100]
    folder = pack(tmp_path / "b", {f"{part}/x.txt": part.encode() * 9 for part in SPLITS})
    load(folder, vocabulary=260)
    assert calls[-1] == b"train" * 9


def test_texts_that_are_not_utf8(load, token_files, tmp_path, bpe):
    """Bytes take them; a tokenizer, and one that is to be trained, say where and leave nothing."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"a line\n" * 9 + b"\xff\n" + b"a line\n" * 9)
    assert joined(load(path)) == [path.read_bytes()]
    for options in ({"tokenizer": bpe}, {"vocabulary": 300}):
        with pytest.raises(DataFormatError) as caught:
            load(path, **options)
        assert str(caught.value) == (
            f"{path}: expected UTF-8, which tokenizers need, got the byte 0xff at byte 63 of the "
            "text; convert the file to UTF-8, or use bytes as tokens"
        )
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "\\ud800"}\n' + '{"text": "b"}\n' * 20)
    assert joined(load(path))[1] == b"\xed\xa0\x80"
    with pytest.raises(DataFormatError, match=r"a\.jsonl: document 2: expected UTF-8.*at byte 0"):
        load(path, tokenizer=bpe)
    folder = pack(tmp_path / "b", {f"{part}/x.txt": b"ab\xff" for part in SPLITS})
    with pytest.raises(DataFormatError, match=r"b: document 1: expected UTF-8.*at byte 2"):
        load(folder, tokenizer=bpe)
    assert len(token_files()) == 1  # of the table as bytes
    assert not list((tmp_path / "tokens").glob("*.tmp"))


def test_the_place_of_a_byte_is_that_in_the_file(load, tmp_path, bpe, monkeypatch):
    monkeypatch.setattr(corpus, "_PIECE", 64)
    path = tmp_path / "a.txt"
    path.write_bytes(b"a line\n" * 100 + b"ab\xffc\n")
    with pytest.raises(DataFormatError, match="the byte 0xff at byte 702 of the text"):
        load(path, tokenizer=bpe)


@given(st.text(st.sampled_from("ab é€😀\n"), max_size=300), st.integers(1, 20), st.integers(5, 40))
def test_pieces_are_the_text(tmp_path_factory, text, size, most):
    """Whole lines, and of very long lines whole characters."""
    most = max(most, size)
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(corpus, "_PIECE", size)
        patched.setattr(corpus, "_MAX_PIECE", most)
        pieces = list(TextSource(path).pieces())
    assert b"".join(piece.text for piece in pieces) == text.encode()
    assert [piece.begins for piece in pieces] == [True, *[False] * (len(pieces) - 1)][: len(pieces)]
    for piece in pieces[:-1]:
        piece.text.decode()
        assert len(piece.text) < most + size
        assert piece.text.endswith(b"\n") or len(piece.text) >= most - 4


def test_a_line_of_many_million_bytes_is_cut(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("é".encode() * (18 * 2**20))
    pieces = [piece.text for piece in TextSource(path).pieces()]
    assert max(map(len, pieces)) <= 2**24 and b"".join(pieces) == path.read_bytes()
    path.write_bytes(b"\x80" * (18 * 2**20))  # no character at all
    assert b"".join(piece.text for piece in TextSource(path).pieces()) == path.read_bytes()


def test_texts_that_are_missing_or_too_short(load, token_files, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"expected a data file at .*gone.txt, found nothing"
    ):
        load(tmp_path / "gone.txt")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataFormatError, match="none: expected a folder or archive of texts, found"):
        load(tmp_path / "none")
    cases = {
        "empty.txt": b"", "short.txt": b"ab", "empty.jsonl": b"\n\n",
        "one.jsonl": b'{"text": "one document"}\n', "empty.txt.gz": gzip.compress(b""),
    }  # fmt: skip
    for name, content in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataFormatError) as caught:
            load(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: expected a ") and "\n" not in message
        assert "text of at least 2 tokens, got " in message
    path = pack(tmp_path / "folder", {"one.txt": b"one document"})
    with pytest.raises(DataFormatError, match="folder: expected a validation text of at least 2"):
        load(path)


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "2: expected a JSON object in each line, got invalid JSON"),
        ("[1]", "2: expected a string 'text', found no keys"),
        ('{"text": 1}', "2: expected a string 'text', found 'text'; choose another column"),
        ('{"text": null}', "2: expected a string 'text'"),
        ('{"a": "b"}', "2: expected a string 'text', found 'a'; choose another column"),
        ("[" * 100_000, "2: expected a JSON object in each line, got invalid JSON"),
        ("\0", "2: expected text, got a NUL byte"),
    ],
)
def test_bad_lines_of_a_table(line, message, load, token_files, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(DataFormatError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{message}") and len(str(caught.value)) < 400
    assert token_files() == []


def test_bad_tables_of_parquet(load, tmp_path):
    path = table(tmp_path / "a.parquet", DOCUMENTS)
    whole = path.read_bytes()
    for content in (
        whole[:-20],
        whole[: len(whole) // 2],
        b"no table",
        b"",
        whole[:50] + whole[60:],
    ):
        path.write_bytes(content)
        with pytest.raises(DataFormatError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}: expected a Parquet file, got a damaged one")
    parquet.write_table(pa.table({"text": ["a", None]}), path)
    with pytest.raises(
        DataFormatError, match=r"row 1 \(counting from 0\): expected a string 'text'"
    ):
        load(path)
    parquet.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(DataFormatError, match="expected a string 'text', got 1; choose another"):
        load(path)
    with pytest.raises(DataFormatError, match="expected a column 'b', found text; choose another"):
        load(path, column="b")
    twice = pa.Table.from_arrays([["a"], ["b"]], names=["text", "text"])
    parquet.write_table(twice, path)
    with pytest.raises(DataFormatError, match="expected a Parquet file, got a damaged one"):
        load(path)


def test_few_rows_of_a_table_are_in_memory(tmp_path):
    """Also of a single row group, as most writers make it."""
    path, count = tmp_path / "a.parquet", 2**15
    texts = [str(number) * 250 for number in range(10_000, 10_000 + count)]
    parquet.write_table(pa.table({"text": texts}), path, compression=None)
    assert path.stat().st_size > 2**25 and parquet.read_metadata(path).num_row_groups == 1
    before, most, num_bytes = pa.total_allocated_bytes(), 0, 0
    for piece in TextSource(path).pieces():
        num_bytes += len(piece.text)
        most = max(most, pa.total_allocated_bytes() - before)
    assert num_bytes == 1250 * count and most < 2**23


def test_a_column_needs_a_table(load, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    with pytest.raises(
        OptionError, match=r"column='text' needs a .jsonl or .parquet file"
    ) as caught:
        load(path, column="text")
    assert caught.value.options == ("column",)


@pytest.mark.parametrize(
    "suffix", ["txt.gz", "txt.xz", "txt.bz2", "zip", "tar.gz", "jsonl.gz", "parquet"]
)
def test_bombs_are_bounded(suffix, load, token_files, tmp_path, bounded, monkeypatch):
    """A file that unpacks to far more than its size is refused before it fills the disk."""
    monkeypatch.setattr(unpacking, "MAX_UNPACKED_BYTES", 2**23)
    size, path = 2**24, tmp_path / f"a.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", bytes(size))
    elif suffix == "tar.gz":
        pack(path, {"a.txt": bytes(size)})
    elif suffix == "parquet":  # refers to one text again and again
        parquet.write_table(pa.table({"text": ["a" * 2**20] * (size // 2**20)}), path)
    else:
        content = b"a" * size
        if suffix == "jsonl.gz":
            content = b'{"text": "' + content + b'"}\n'
        path.write_bytes(COMPRESSIONS[suffix.rpartition(".")[2]](content))
    with bounded(), pytest.raises(DataFormatError, match=r"expected at most .* unpacked from"):
        load(path)
    assert token_files() == []
    assert not list((tmp_path / "tokens").glob("*.tmp"))


def test_a_kill_leaves_no_token_file(tmp_path, bpe, monkeypatch):
    """Half a file has another name, which the next run removes."""
    path, folder = tmp_path / "a.txt", tmp_path / "tokens"
    path.write_bytes(TEXT)
    write = corpus._write

    def stop(file, *args):
        write(file, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(corpus, "_write", stop)
    with pytest.raises(KeyboardInterrupt):
        load_corpus(path, tokenizer=bpe, folder=folder)
    assert [name.suffix for name in folder.iterdir()] == [".lock"]
    monkeypatch.undo()
    load_corpus(path, tokenizer=bpe, folder=folder)
    (file,) = folder.glob("*.uint16")
    killed = folder / f"{file.name}.0123abcd.tmp"
    file.rename(killed)
    load_corpus(path, tokenizer=bpe, folder=folder)
    assert file.exists() and not killed.exists()


def test_a_second_process_waits_for_the_tokens(tmp_path, bpe, monkeypatch, capsys):
    path, folder, calls = tmp_path / "a.txt", tmp_path / "tokens", []
    path.write_bytes(TEXT)
    begun, noted, write = threading.Event(), threading.Semaphore(0), corpus._write

    def slow(*args):
        # Both others wait, and their notes name this process, until it has written the tokens.
        begun.set()
        calls.append(all(noted.acquire(timeout=60) for _ in range(2)))
        write(*args)

    def note(*args, **options):
        print(*args, **options)
        noted.release()

    monkeypatch.setattr(corpus, "_write", slow)
    monkeypatch.setattr(storage, "print", note, raising=False)
    monkeypatch.setattr(storage, "NOTICE_SECONDS", 0.05)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(load_corpus(path, tokenizer=bpe, folder=folder))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
        assert begun.wait(60)
    for thread in threads:
        thread.join()
    assert calls == [True] and len(found) == 3
    assert all((each.train == found[0].train).all() for each in found)
    notes = capsys.readouterr().err.splitlines()
    begin = f"note: waiting for the tokens of {path}, which another process uses (process "
    assert len(notes) == 2 and all(line.startswith(begin) for line in notes)
    load_corpus(path, tokenizer=bpe, folder=folder)
    assert capsys.readouterr().err == ""


def test_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert token_folder() == tmp_path / "flax-linattn" / "tokens"
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    tokens = write_tokens(TextSource(path, has_documents=True), BYTES, token_folder())
    assert tokens.tolist() == [256, *TEXT]  # a text as one document
    rows = TextSource(table(tmp_path / "a.jsonl", DOCUMENTS), has_documents=False)
    tokens = write_tokens(rows, BYTES, token_folder())
    assert bytes(tokens.tolist()) == "".join(DOCUMENTS).encode()  # documents as one text
