"""Excel files of time series: the bytes of the file, or of an entry of its archive."""

import io
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import openpyxl

from flax_linattn import data
from tests.fuzz.damage import corrupted, mutated
from tests.fuzz.series import ROWS, check_loaded
from tests.fuzz.subject import Case, Subject


class ExcelFiles(Subject):
    """What ``load_series`` reads of them, with texts, dates and missing cells."""

    counts = (40, 2_000)
    errors = (data.DataFormatError,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "timed.xlsx"
        book = openpyxl.Workbook()
        for row in [("date", "load", "OT"), *ROWS, ("2024-01-03 00:00:00", None, 2)]:
            book.active.append(row)
        book.save(self.path)
        self.whole = self.path.read_bytes()
        with zipfile.ZipFile(self.path) as archive:
            self.entries = {name: archive.read(name) for name in archive.namelist()}

    def samples(self) -> Iterator[Case]:
        yield self.case(self.whole)

    def damage(self, draw: random.Random) -> Case:
        if draw.random() < 0.3:
            return self.case(corrupted(self.whole, draw), "the file")
        name, store = draw.choice(list(self.entries)), io.BytesIO()
        if draw.random() < 0.5:
            name = "xl/worksheets/sheet1.xml"
        with zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED) as archive:
            for other, content in self.entries.items():
                archive.writestr(other, mutated(content, draw) if other == name else content)
        return self.case(store.getvalue(), name)

    def case(self, content: bytes, note: str = "") -> Case:
        self.path.write_bytes(content)
        return Case(
            "xlsx", self.path, lambda: check_loaded(data.load_series(self.path), self.path), note
        )
