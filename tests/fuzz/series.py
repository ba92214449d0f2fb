"""Files of time series and tables."""

import itertools
import random
import re
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from flax_linattn import data
from flax_linattn.data.series import spoken_arabic_digits
from tests.fuzz.subject import Case, TextSubject

ROWS = [(f"2024-01-{1 + i // 8:02} {i % 8:02}:00:00", i * 0.25, 7 - i) for i in range(12)]
BLANKS = " \t\f\v\x1c\x1d\x1e\x1f\x85\xa0\u2028"
FRAME = " ".join(["0.5", "-1.25"] * 6 + ["3"])


class Series(TextSubject):
    """What ``load_series`` and ``load_dataset`` read."""

    counts = (300, 10_000)
    outcomes: ClassVar = {"refused with its line", "valid"}
    texts: ClassVar = {
        "toy.ts": (
            "# c\n@problemName Toy\n@timeStamps false\n@missing true\n@univariate false\n"
            "@dimensions 2\n@equalLength false\n@classLabel true 1.0 2.0 10.0\n@data\n"
            "1,2,3:4,?,6:1.0\n-1,2e1:0.5,0:10.0\n1:2:2.0\n"
        ),
        "one.ts": "@univariate true\n@classLabel true up down\n@data\n1,2,3:up\n3,2.5,1:down\n",
        "one.arff": (
            "% c\n@relation toy\n@attribute t0 numeric\n@attribute t1 real\n"
            "@attribute c {up, 'a, b'}\n@data\n1,2,up\n3,?,'a, b'\n-1,0.5,up\n"
        ),
        "toy.arff": (
            "@relation 'a toy'\n@attribute steps relational\n@attribute t0 numeric\n"
            "@attribute t1 numeric\n@attribute t2 numeric\n@end steps\n@attribute c {down,up}\n"
            "@data\n'3,2,1\\n0,0,1',down\n'4,5,?\\n1,1,?',up\n"
        ),
        "toy.tsf": (
            "# c\n@relation toy\n@attribute series_name string\n@attribute start date\n"
            "@frequency daily\n@missing true\n@equallength false\n@data\n"
            "T1:2024-01-01 00-00-00:1,2,3\nT2:2024-01-01 00-00-00:4,?,6\n"
        ),
        "bare.tsf": "@relation toy\n@attribute name string\n@data\na:1,2.5,3\nb:4,5,6\n",
        "timed.csv": "date,load,OT\n" + "".join(f"{t},{a},{b}\n" for t, a, b in ROWS),
        "named.csv": 'load,"O, T"\n' + "".join(f"{a},{b}\n" for _, a, b in ROWS) + "?,\n",
        "headless.csv": "".join(f"{t},{a},{b}\n" for t, a, b in ROWS),
        "headless.txt": "".join(f"{a},{b}\n" for _, a, b in ROWS),
        "Test_Arabic_Digit.txt": "".join(f"  \n{FRAME}\n{FRAME}\n" for _ in range(10)),
    }

    @staticmethod
    def context() -> Any:
        """Ten utterances of digits are a whole file."""
        return mock.patch.object(spoken_arabic_digits, "FRAMES", {10: 20, 20: 40})

    def case(self, path: Path, draw: random.Random | None = None) -> Case:
        is_table = any(part in path.name for part in (".csv", ".tsf", "headless"))
        load = data.load_series if is_table else data.load_dataset
        return Case(path.name, path, lambda: check_loaded(load(path), path))

    def refusal(self, error: Exception, case: Case) -> str:
        super().refusal(error, case)
        if not isinstance(error, data.DataFormatError):
            return "refused"
        assert re.match(rf"{re.escape(str(case.path))}:(\d+): expected ", str(error)), error
        return "refused with its line"


def check_loaded(loaded: data.TimeSeriesDataset | data.TimeSeries, path: Path) -> None:
    """Whether it is what the types promise; and whether a table has lost no row."""
    if isinstance(loaded, data.TimeSeriesDataset):
        assert loaded.num_examples and set(loaded.labels.tolist()) <= set(
            range(len(loaded.classes))
        )
        assert len(set(loaded.classes)) == len(loaded.classes)
        values = list(loaded.series)
        assert all(len(x) and x.shape[1:] == (loaded.num_channels,) for x in values)
    else:
        values = [loaded.values]
        assert loaded.values.shape == (loaded.num_steps, len(set(loaded.channels)))
        if loaded.times is not None:
            assert loaded.times.is_monotonic_increasing
            assert 0 < loaded.times[-1].year < 10_000
    assert all(x.dtype == np.float64 and not np.isinf(x).any() for x in values)
    if "headless" in path.name and path.suffix not in (".gz", ".xz"):
        assert isinstance(loaded, data.TimeSeries)
        content = path.read_bytes()
        marked = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        text = content.decode("utf-16" if marked else "utf-8-sig", errors="replace")
        lines = [line for line in re.split("\r\n|\r|\n", text) if line.strip(BLANKS)]
        rows = itertools.dropwhile(lambda line: line.startswith("#"), lines)
        assert loaded.num_steps == sum(re.match(r"#(\s|$)", line) is None for line in rows)
