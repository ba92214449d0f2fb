"""Tables of several series read as one: the error names the column that tells them apart."""

import pytest

from flax_linattn import data
from flax_linattn.data.dialect import PLAIN
from flax_linattn.data.files import DataFormatError
from flax_linattn.data.long import find_id

DAYS = [f"2024-01-{day:02d}" for day in range(1, 11)]


def write(tmp_path, header, rows):
    path = tmp_path / "toy.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("shops", [("Bern", "Uri"), (7, 3)])
@pytest.mark.parametrize("first", ["blocks", "days"])
def test_the_column_is_named(tmp_path, shops, first):
    """Of words and of numbers, series one after the other and mixed; beside a constant column."""
    cells = [(shop, day, which + 0.5) for shop in shops for which, day in enumerate(DAYS)]
    if first == "days":
        cells.sort(key=lambda cell: cell[1])
    path = write(tmp_path, "date,sales,shop", [(day, sales, shop) for shop, day, sales in cells])
    with pytest.raises(DataFormatError, match="give id_column='shop'") as error:
        data.load_table(path)
    assert error.value.values["id_column"] == "shop" and error.value.options == ("id_column",)
    assert len(str(error.value)) < 300
    assert [one.num_steps for one in data.load_long(path, id_column="shop")] == [10, 10]


@pytest.mark.parametrize(
    "rows",
    [
        [(day, "six", "x") for day in DAYS],  # times rise
        [(day, which % 3, which) for which, day in enumerate([*DAYS[:4], *DAYS[:4]])],  # ids fail
        [("noon", "six", "x")] * 4,  # no times
    ],
)
def test_others_have_none(rows):
    found = find_id([list(map(str, row)) for row in rows], ["date", "sales", "note"], PLAIN)
    assert found is None


def test_one_damaged_cell_is_told_as_before(tmp_path):
    path = write(tmp_path, "date,sales", [(day, "six" if day == DAYS[4] else 1) for day in DAYS])
    with pytest.raises(DataFormatError, match=r"toy\.csv:6: expected a finite") as error:
        data.load_table(path)
    assert "id_column" not in str(error.value) and "id_column" not in error.value.options
