"""Downloads, from a server of our own."""

import functools
import hashlib
import http.server
import re
import threading
import zipfile

import pytest

from flax_linattn import cli, data
from flax_linattn.data import CATALOG
from flax_linattn.data.sets import catalog

pytest.importorskip("pooch")


@pytest.fixture
def server(tmp_path_factory):
    """A folder, and the address from which it is served."""
    folder = tmp_path_factory.mktemp("served")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def entry(*sources):
    return catalog.Entry(catalog.SERIES, "a toy", "none", "-", sources)


def test_files_are_downloaded_once_and_checked(server, tmp_path, monkeypatch, capsys):
    folder, url = server
    content = b"a,b\n1,2\n"
    known = hashlib.sha256(content).hexdigest()
    (folder / "toy.csv").write_bytes(content)
    with zipfile.ZipFile(folder / "toy.zip", "w") as archive:
        archive.writestr("inner/other.csv", content)
    sources = (
        catalog.Source("toy.csv", f"{url}/toy.csv", known),
        catalog.Source("other.csv", f"{url}/toy.zip"),
    )
    monkeypatch.setitem(CATALOG, "toy", entry(*sources))
    assert cli.main(["data", "fetch", "toy", "--to", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert f"flax-linattn train forecast --csv {tmp_path}/toy.csv" in shown.out
    assert "toy.csv: checked" in shown.err and f"its SHA-256 is {known}" in shown.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.csv", "toy.csv"]
    for file in folder.iterdir():
        file.unlink()
    assert [path.read_bytes() for path in data.fetch("toy", tmp_path)] == [content, content]
    (tmp_path / "toy.csv").write_bytes(b"changed")
    with pytest.raises(ValueError, match="is not the official file"):
        data.fetch("toy", tmp_path)


def test_what_cannot_be_downloaded_is_named(server, tmp_path, monkeypatch, capsys):
    _, url = server
    gone = catalog.Source("gone.csv", f"{url}/gone.csv")
    monkeypatch.setitem(CATALOG, "gone", entry(gone))
    assert cli.main(["data", "fetch", "gone", "--to", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert f"could not download {url}/gone.csv" in message
    assert f"copy gone.csv to {tmp_path}" in message
    assert list(tmp_path.iterdir()) == []


def test_another_file_than_the_official_one_is_refused(server, tmp_path, monkeypatch):
    folder, url = server
    (folder / "toy.csv").write_bytes(b"damaged")
    monkeypatch.setitem(
        CATALOG, "toy", entry(catalog.Source("toy.csv", f"{url}/toy.csv", "0" * 64))
    )
    with pytest.raises(ValueError, match=r"toy\.csv is not the official file"):
        data.fetch("toy", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_page_in_place_of_an_archive_is_named(server, tmp_path, monkeypatch, capsys):
    folder, url = server
    (folder / "toy.zip").write_text("<html>moved</html>")
    monkeypatch.setitem(CATALOG, "toy", entry(catalog.Source("a.csv", f"{url}/toy.zip")))
    assert cli.main(["data", "fetch", "toy", "--to", str(tmp_path)]) == 2
    assert "did not return a complete zip archive" in capsys.readouterr().err


def test_the_catalog_is_shown(capsys):
    assert cli.main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in CATALOG)
    assert re.search(r"ETTh1 +forecast +a transformer", listed)
    assert cli.main(["data", "info", "ETTh2"]) == 0
    shown = capsys.readouterr().out
    assert "license: CC BY-ND 4.0" in shown and "--split 8640/2880/2880" in shown
    for name, split in (("ETTm1", "34560/11520/11520"), ("weather", "0.7/0.1/0.2")):
        assert cli.main(["data", "info", name]) == 0
        assert f"--split {split}" in capsys.readouterr().out
    assert cli.main(["data", "info", "traffic"]) == 0
    assert "resolve/main/traffic/traffic.csv" in capsys.readouterr().out
    assert cli.main(["data", "info", "traffic_lai"]) == 0
    assert "master/traffic/traffic.txt.gz" in capsys.readouterr().out
    assert cli.main(["data", "info", "ETTx"]) == 2
    assert "unknown data set 'ETTx'; choose one of: BasicMotions" in capsys.readouterr().err


def test_known_checksums_are_those_of_the_files_at_hand(data_dir):
    import gzip
    import lzma

    places = {
        "ETTh2": ["ett/ETTh2.csv.gz"],
        "UWaveGestureLibrary": [
            "uea/UWaveGestureLibrary/UWaveGestureLibrary_TRAIN.ts.gz",
            "uea/UWaveGestureLibrary/UWaveGestureLibrary_TEST.ts.gz",
        ],
        "SpokenArabicDigits": [
            "uea/SpokenArabicDigits/Train_Arabic_Digit.txt.xz",
            "uea/SpokenArabicDigits/Test_Arabic_Digit.txt.xz",
        ],
    }
    for name, files in places.items():
        for source, file in zip(CATALOG[name].sources, files, strict=True):
            opened = gzip.open if file.endswith(".gz") else lzma.open
            with opened(data_dir / file) as content:
                assert hashlib.sha256(content.read()).hexdigest() == source.sha256
