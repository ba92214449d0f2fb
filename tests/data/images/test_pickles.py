"""Pickles: those of CIFAR-10 are read, and none is ever run."""

import builtins
import os
import pickle
import random
import subprocess
import time
from collections import OrderedDict

import numpy as np
import pytest

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.images import cifar10, load_images
from flax_linattn.data.images.cifar10 import read_pickle
from tests.data.images.samples import write_cifar10

BATCH = {
    b"batch_label": b"training batch 1 of 5",
    b"labels": [6, 9, 9],
    b"data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    b"filenames": [b"a.png", b"b\xff.png", b"c.png"],
    b"others": [None, True, -(2**70), 0.5, "text"],
}

# As Python 2 and its NumPy wrote the official files: texts are bytes, and so is the data.
PYTHON2 = (
    b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x05batchU\x06labelsq\x03]q\x04(K\x06K\x09eU\x04dataq\x05"
    b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85U\x01b\x87Rq\x08"
    b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x09U\x02u1K\x00K\x01\x87Rq\x0a(K\x03U\x01|NNNJ\xff\xff\xff\xff"
    b"J\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x02\xfd\xfe\xfftbU\tfilenames]q\x0bU\x05a.pngau."
)


def test_what_python_2_wrote(bounded):
    """Whatever size the file says before the bytes."""
    large = PYTHON2.replace(b"K\x00\x85U\x01b", b"\x8a\x06" + bytes(5) + b"\x01\x85U\x01b")
    assert len(large) > len(PYTHON2)
    with bounded():
        found = read_pickle("a", large)
    assert found["labels"] == [6, 9] and found["filenames"] == ["a.png"]
    assert found["data"].tolist() == [[0, 1, 2], [253, 254, 255]]
    known = pickle.loads(PYTHON2, encoding="bytes")  # NumPy's own way
    assert np.array_equal(known[b"data"], found["data"])


@pytest.mark.parametrize("protocol", range(5))
def test_what_python_3_writes(protocol):
    found = read_pickle("a", pickle.dumps(BATCH, protocol=protocol))
    assert all(found[name] == BATCH[name.encode()] for name in ("labels", "filenames", "others"))
    assert found["data"].dtype == np.uint8 and np.array_equal(found["data"], BATCH[b"data"])


class Runs:
    """A pickle that would run a command."""

    def __init__(self, what, *arguments):
        self.what = what, arguments

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize(
    "make",
    [
        lambda file: Runs(os.system, f"touch {file}"),
        lambda file: Runs(builtins.eval, f"open({str(file)!r}, 'w')"),
        lambda file: {b"data": Runs(os.makedirs, str(file))},
        lambda file: Runs(np.load, str(file)),
        lambda file: Runs(np.dtype, Runs(os.system, f"touch {file}")),
        lambda file: Runs(getattr, "", "join"),
    ],
)
def test_nothing_is_run(make, protocol, tmp_path):
    file = tmp_path / "ran"
    with pytest.raises(DataFormatError, match="a: expected a pickle of plain values and arrays"):
        read_pickle("a", pickle.dumps(make(file), protocol=protocol))
    assert not file.exists()


@pytest.mark.parametrize(
    "name",
    [
        b"imported_by_a_pickle\nf",
        b"numpy.core.multiarray.imported_by_a_pickle\n_reconstruct",
        b"numpy\ndtype.imported_by_a_pickle",
    ],
)
def test_nothing_is_imported(name, tmp_path, monkeypatch):
    (tmp_path / "imported_by_a_pickle.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataFormatError, match=r"the name '(imported_by|numpy)"):
        read_pickle("a", b"c" + name + b"\n(S'x'\ntR.")


DEEP = b"K\x00" + b"\x85" * 100_000
LAUGHS = (
    b"(]q\x00K\x07a"
    + b"".join(bytes([93, 113, n, 40]) + bytes([104, n - 1]) * 9 + b"e" for n in range(1, 40))
    + b"t"
)
"""A list of nine times a list of nine times a list, 40 deep."""
REFUSED = {
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent name": b"Pname\n.",
    "an instance": b"(ios\nsystem\n.",
    "an object": pickle.dumps(OrderedDict(a=1)),
    "a set": pickle.dumps({1, 2}, protocol=4),
    "an out-of-band buffer": b"\x80\x05\x97.",
    "a byte array of 2**60 bytes": b"\x80\x05\x96" + (2**60).to_bytes(8, "little") + b".",
    "bytes of 2**60": b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b".",
    "a number of 2**31 bytes": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a memory of 2**32": b"\x80\x02K\x00r\xff\xff\xff\xff.",
    "a memory of 10**12": b"K\x00p1000000000000\n.",
    "tuples, one in the other": b"\x80\x02" + DEEP + b".",
    "the same as a key": b"\x80\x02}" + DEEP + b"K\x00s.",
    "lists of lists": b"\x80\x02" + LAUGHS + b".",
    "floats": pickle.dumps({b"data": np.zeros(3)}, protocol=2),
    "objects": pickle.dumps({b"data": np.array([None, {}])}, protocol=2),
    "another number of bytes": PYTHON2.replace(b"U\x06\x00\x01\x02\xfd", b"U\x05\x01\x02\xfd"),
    "a shape below zero": PYTHON2.replace(
        b"K\x02K\x03\x86", b"J\xfe\xff\xff\xffJ\xfd\xff\xff\xff\x86"
    ),
    "a state of a class": b"\x80\x02cnumpy\nndarray\n}U\x04nameU\x01xsb.",
    "a state of a function": b"\x80\x02c_codecs\nencode\n}U\x08__call__K\x01sb.",
    "twenty million lists": b"\x80\x02" + b"]" * 20_000_000,
    "nothing": b"",
    "a text": b"some text",
    "half": PYTHON2[:80],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, bounded):
    """In bounded memory and time; a later pickle is read as if there had been none."""
    with bounded(), pytest.raises(DataFormatError) as caught:
        read_pickle("the place", REFUSED[name])
    assert str(caught.value).startswith("the place: expected a pickle of plain values")
    assert len(str(caught.value)) < 400
    assert read_pickle("a", pickle.dumps(BATCH, protocol=2))["labels"] == [6, 9, 9]


@pytest.mark.parametrize("key", ["data", "labels"])
@pytest.mark.parametrize("value", [LAUGHS, DEEP, b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"])
def test_no_message_prints_what_is_endless(key, value, tmp_path, bounded):
    folder = write_cifar10(tmp_path, 1, "python")
    others = pickle.loads((folder / "test_batch").read_bytes())
    del others[key.encode()]
    text = b"U" + bytes([len(key)]) + key.encode() + value + b"s."
    (folder / "test_batch").write_bytes(pickle.dumps(others, protocol=2)[:-1] + text)
    with bounded(), pytest.raises(DataFormatError, match=f"test_batch: expected .* under '{key}'"):
        load_images(folder)


def mutated(content, draw):
    some = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(some))
        match draw.randrange(4):
            case 0:
                some[at] ^= 1 << draw.randrange(8)
            case 1:
                some[at] = draw.randrange(256)
            case 2:
                some[at:at] = draw.choice(
                    (b"R", b"b", b"0", b"2", b"\x81", b"\x93", b"cos\nsystem\n", b"q\xff", b"\x85")
                )
            case 3:
                del some[at : at + draw.randint(1, 6)]
    return bytes(some)


@pytest.mark.parametrize(
    ("count", "seed"), [(1_500, 0), pytest.param(60_000, 1, marks=pytest.mark.slow)]
)
def test_damaged_pickles_are_refused_or_values(count, seed, monkeypatch):
    def never(*_):
        raise AssertionError("a pickle ran something")

    for module, name in ((os, "system"), (subprocess, "Popen"), (builtins, "open")):
        monkeypatch.setattr(module, name, never)
    draw = random.Random(seed)
    whole = [PYTHON2, *(pickle.dumps(BATCH, protocol=protocol) for protocol in range(5))]
    refused, begin = 0, time.process_time()
    for _ in range(count):
        try:
            found = read_pickle("a", mutated(draw.choice(whole), draw))
        except DataFormatError:
            refused += 1
            continue
        arrays = [value for value in found.values() if isinstance(value, np.ndarray)]
        assert all(array.dtype == np.uint8 for array in arrays)
    assert count / 20 < refused < count * 19 / 20
    assert time.process_time() - begin < 10 + count / 500


def test_a_batch_of_the_official_size(bounded, monkeypatch):
    """As Python 3 writes it for Python 2: each file name is a call. Larger ones are refused."""
    batch = {
        b"labels": [7] * 10_000,
        b"data": np.zeros((10_000, 3072), np.uint8),
        b"filenames": [b"%d.png" % number for number in range(10_000)],
    }
    content = pickle.dumps(batch, protocol=2)
    with bounded():
        assert read_pickle("a", content)["data"].shape == (10_000, 3072)
    monkeypatch.setattr(cifar10, "MAX_PICKLE_SIZE", len(content) - 1)
    with pytest.raises(DataFormatError, match=r"31,\d\d\d,\d\d\d bytes, more than 31,"):
        read_pickle("a", content)


@pytest.mark.parametrize("how", ["encoded", "a set"])
def test_one_text_does_not_become_many(how, bounded):
    """By references to it, or by objects that take much memory for a byte of the file."""
    if how == "a set":
        content = b"\x80\x04(" + pickle.EMPTY_SET * 1000 + b"t."
    else:
        text = b"X" + (2**20).to_bytes(4, "little") + b"a" * 2**20
        name = b"c_codecs\nencode\nq\x00X\x06\0\0\0latin1q\x01"
        content = b"\x80\x02(" + name + text + b"q\x02" + b"h\x00h\x02h\x01\x86R" * 100 + b"t."
    message = r"more than 67,108,864|another kind of file .143."
    with bounded(), pytest.raises(DataFormatError, match=message):
        read_pickle("a", content)
