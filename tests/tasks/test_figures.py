"""Figures of runs and streams: the old one until the new one is complete."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from flax_linattn.tasks.classify.figures import plot_confusion, plot_stream
from flax_linattn.tasks.forecast.figures import plot_windows

pytest.importorskip("matplotlib")

DRAW = {
    "confusion": lambda path: plot_confusion(np.eye(2, dtype=np.int64), "ab", path),
    "stream": lambda path: plot_stream([1, 2], np.eye(2), "ab", path, "title"),
    "forecasts": lambda path: plot_windows(
        [(np.zeros((3, 1)), None, np.zeros((2, 1)))], ["a"], path, ["title"]
    ),
}


@pytest.mark.parametrize("name", DRAW)
def test_a_disk_that_fills_up_leaves_the_figure_before(name, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def half(figure, target, **options):
        with open(target, "wb") if isinstance(target, Path) else target as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "figure.png"
    path.write_bytes(b"before")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="No space left on device"):
        DRAW[name](path)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("file", "begin"), [("new/a.png", b"\x89PNG"), ("a", b"\x89PNG"), ("a.PDF", b"%PDF")]
)
def test_the_name_says_the_format(file, begin, tmp_path):
    DRAW["confusion"](tmp_path / file)
    assert (tmp_path / file).read_bytes().startswith(begin)


def test_figures_of_one_and_of_many_long_classes(tmp_path):
    for count in (1, 30):
        path = tmp_path / f"{count}.png"
        plot_confusion(np.eye(count, dtype=int), [f"class {i}" for i in range(count)], path)
        assert path.read_bytes().startswith(b"\x89PNG")
