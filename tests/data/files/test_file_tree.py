"""Trees of files: a folder and every archive of it are one tree, and damage is named."""

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files import file_tree
from flax_linattn.data.files.file_tree import FileTree

FILES = {
    "top/train/a/1.txt": b"one",
    "top/train/b/2.txt": b"",
    "top/.hidden": b"h",
    "top/.git/x.txt": b"h",
    "__MACOSX/top/1.txt": b"h",
    "top/wide name/\u00e9 1.txt": bytes(range(256)) * 9,
}
SEEN = {name: data for name, data in FILES.items() if "/." not in name and "__M" not in name}


def tar_bytes(files, mode="w"):
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return memory.getvalue()


def zip_bytes(files, compression=zipfile.ZIP_DEFLATED):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return memory.getvalue()


PACKED = {
    "toy.tar": tar_bytes,
    "toy.tar.gz": lambda files: gzip.compress(tar_bytes(files)),
    "toy.tar.xz": lambda files: lzma.compress(tar_bytes(files), preset=0),
    "toy.tar.bz2": lambda files: bz2.compress(tar_bytes(files)),
    "toy.zip": zip_bytes,
    "stored.zip": lambda files: zip_bytes(files, zipfile.ZIP_STORED),
    "no suffix": lambda files: gzip.compress(tar_bytes(files)),
}


def write_folder(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", PACKED)
def test_an_archive_is_the_tree_of_its_folder(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(PACKED[name](FILES))
    tree, folder = FileTree(path), FileTree(write_folder(tmp_path / "folder", FILES))
    assert tree.sizes == folder.sizes == {name: len(data) for name, data in SEEN.items()}
    assert tree.read_all(tree.sizes) == folder.read_all(folder.sizes) == SEEN
    assert tree.read_all(["top/train/b/2.txt"]) == {"top/train/b/2.txt": b""}
    assert tree.name == ("no suffix" if name == "no suffix" else name.split(".")[0])
    assert tree.place("a/b") == f"{path}!a/b" and folder.place("a") == f"{folder.path / 'a'}"


NAMES = st.text("ab", min_size=1, max_size=3) | st.sampled_from([".a", "a.b", "..a"])
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=700), max_size=6
)


@settings(max_examples=30)
@given(TREES, st.randoms(use_true_random=False))
def test_archives_in_any_order_are_one_tree(tmp_path_factory, files, draw):
    expected = {
        name: data
        for name, data in files.items()
        if not any(part.startswith(".") for part in name.split("/"))
    }
    names = list(files)
    draw.shuffle(names)
    folder = tmp_path_factory.mktemp("trees")
    for kind in ("toy.tar.gz", "toy.zip"):
        path = folder / kind
        path.write_bytes(PACKED[kind]({name: files[name] for name in names}))
        tree = FileTree(path)
        assert tree.read_all(tree.sizes) == expected


def test_the_last_of_a_name_stands(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes({"a": b"old", "./a": b"newer"}))
    assert FileTree(path).read_all(["a"]) == {"a": b"newer"}


def test_links_and_devices_in_archives_are_left_out(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of another")
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"link{kind.decode()}.txt")
            info.type, info.linkname = kind, str(secret)
            archive.addfile(info)
    path = tmp_path / "a.tar"
    path.write_bytes(memory.getvalue())
    tree = FileTree(path)
    assert tree.sizes == {} and tree.links == 2
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        info = zipfile.ZipInfo("link.txt")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, str(secret))
    path.write_bytes(memory.getvalue())
    tree = FileTree(path)
    assert tree.sizes == {} and tree.links == 1


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/etc/passwd", "a//b"])
def test_names_that_lead_out_are_left_out(name, tmp_path):
    for kind in ("toy.tar", "toy.zip"):
        (tmp_path / kind).write_bytes(PACKED[kind]({name: b"x", "in.txt": b"y"}))
        assert set(FileTree(tmp_path / kind).sizes) == {"in.txt"}


def test_files_that_are_nested_too_deeply_are_left_out(tmp_path):
    """As in folders: each of ten thousand parts of a name would be a candidate for the top."""
    names = ["/".join("abcdefghijklm"), "train/" * 10_000 + "a/1.txt"]
    for kind in ("toy.tar", "toy.zip"):
        (tmp_path / kind).write_bytes(PACKED[kind](dict.fromkeys(names, b"x")))
        assert set(FileTree(tmp_path / kind).sizes) == {names[0]}


def tar_header(name="1.txt", size=0, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)  # which has sizes below zero


def pax_header(*fields):
    """An extended header, and one of a file."""
    content = b"".join(b"%d %s\n" % (len(field) + 4, field) for field in fields)
    head = tar_header(size=len(content), kind=tarfile.XHDTYPE)
    return head + content.ljust(512, b"\0")


SPARSE = pax_header(b"GNU.sparse.major=1", b"GNU.sparse.minor=0")
HOSTILE_TARS = {
    "a size below zero": tar_header(size=-512),
    "an extended size below zero": tar_header() + pax_header(b"size=-1536") + tar_header(),
    "a long name of a size below zero": tar_header(size=-512, kind=tarfile.GNUTYPE_LONGNAME),
    "a long name": tar_header(size=2**21, kind=tarfile.GNUTYPE_LONGNAME) + b"a" * 2**21,
    "a long extended header": tar_header(size=2**21, kind=tarfile.XHDTYPE) + b"a" * 2**21,
    "a sparse map": SPARSE + tar_header(size=2**21) + b"1000000\n" + b"1\n" * 2**20,
}


def test_a_damaged_header_in_a_tar_is_no_end(tmp_path):
    content = bytearray(tar_bytes({"a": b"x" * 512, "b": b"y" * 512}))
    content[1024] ^= 1
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(content))
    with pytest.raises(DataFormatError, match=r"a\.tar: .*its end is missing, or a header is dama"):
        FileTree(path)


@pytest.mark.parametrize("kind", HOSTILE_TARS)
def test_headers_of_a_tar_are_bounded(kind, tmp_path, bounded):
    """Python's tarfile reads on forever at a size below zero, and other headers whole."""
    path = tmp_path / "a.tar"
    path.write_bytes(HOSTILE_TARS[kind] + bytes(10_240))
    message = r"a\.tar: .*its headers overlap|the header of a file takes more than 1,048,576 bytes"
    with bounded(), pytest.raises(DataFormatError, match=message):
        FileTree(path)


@pytest.mark.parametrize(
    ("compression", "message"),
    [
        (zipfile.ZIP_DEFLATED, r"Bad CRC-32 for file 'a\.txt'"),
        (zipfile.ZIP_LZMA, r"Bad CRC-32 for file 'a\.txt'"),
        (zipfile.ZIP_BZIP2, r"'a\.txt' is compressed by neither deflate nor LZMA"),
    ],
)
def test_a_zip_is_not_unpacked_beyond_its_declared_sizes(tmp_path, compression, message):
    path = tmp_path / "a.zip"
    size = 0x8010203  # a number whose bytes stand nowhere else
    content = zip_bytes({"a.txt": bytes(size)}, compression)
    path.write_bytes(content.replace(struct.pack("<I", size), struct.pack("<I", 1000)))
    tree = FileTree(path)
    assert tree.sizes == {"a.txt": 1000}
    tracemalloc.start()
    try:
        with pytest.raises(DataFormatError, match=rf"a\.zip: .*{message}"):
            tree.read_all(["a.txt"])
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


def test_a_link_of_a_folder_that_leads_back_ends(tmp_path):
    write_folder(tmp_path, {"a/1.txt": b"x"})
    os.symlink(tmp_path, tmp_path / "a" / "again")
    os.symlink(tmp_path / "nowhere", tmp_path / "a" / "broken.txt")
    sizes = FileTree(tmp_path).sizes
    assert sizes["a/1.txt"] == 1 and len(sizes) < 10


@pytest.mark.parametrize("name", PACKED)
def test_an_archive_that_is_cut_short_anywhere_is_refused(name, tmp_path):
    content = PACKED[name]({"a": b"x" * 600, "b": b"y" * 512})
    end = 512 * 5 if name == "toy.tar" else len(content)  # behind it are only empty blocks
    path = tmp_path / name
    for cut in sorted({*range(0, end, max(1, end // 60)), end - 1, min(512 * 3, end - 1)}):
        path.write_bytes(content[:cut])
        with pytest.raises(DataFormatError, match=r"expected a folder, or a whole \.tar") as found:
            FileTree(path)
        assert str(found.value).startswith(f"{path}: ")


def test_what_is_no_archive_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected a folder or an archive at .*none"):
        FileTree(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe.zip")  # which nobody writes to
    with pytest.raises(FileNotFoundError, match=r"pipe\.zip, found a pipe or a device there; "):
        FileTree(tmp_path / "pipe.zip")
    path = tmp_path / "a.txt"
    path.write_text("some text")
    with pytest.raises(DataFormatError, match=r"a\.txt: expected a folder, or a whole"):
        FileTree(path)


def test_a_damaged_file_of_a_zip_is_named(tmp_path):
    content = bytearray(zip_bytes({"a.txt": b"x" * 50}, zipfile.ZIP_STORED))
    content[40] ^= 1
    path = tmp_path / "a.zip"
    path.write_bytes(bytes(content))
    with pytest.raises(DataFormatError, match=r"a\.zip: .*Bad CRC-32 for file 'a\.txt'"):
        FileTree(path).read_all(["a.txt"])


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(file_tree, "MAX_FILE_BYTES", 4)
    path = write_folder(tmp_path, {"a": b"x" * 5})
    with pytest.raises(DataFormatError, match="a: expected a file of at most 4 bytes, got one of"):
        FileTree(path).read_all(["a"])
