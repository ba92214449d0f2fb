"""The .ts loader: what it reads, and what it refuses, message by message."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import DataFormatError, TimeSeriesDataset, load_dataset, load_ts
from flax_linattn.data.labels import in_order
from tests.data.refusals import cases, refuse

HEADER = """#A comment
@problemName Toy
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength true
@seriesLength 3
@classLabel true 1 10 2
@data
"""
DATA = "1,2,3:4,5,6:10\n-1,2e1,.5:0,0,0:2\n"
TOY = HEADER + DATA


def write(tmp_path, text, name="toy.ts"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def without(*tags):
    return "".join(line for line in HEADER.splitlines(True) if not line.startswith(tags))


def test_reads_values_labels_and_names(tmp_path):
    dataset = load_ts(write(tmp_path, TOY))
    assert dataset.name == "Toy"
    assert dataset.classes == ("1", "2", "10")
    assert dataset.channels == ("dim_0", "dim_1")
    assert dataset.labels.dtype == np.int32
    assert dataset.labels.tolist() == [2, 1]
    assert [values.dtype for values in dataset.series] == [np.float64] * 2
    assert dataset.series[0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert dataset.series[1].tolist() == [[-1, 0], [20, 0], [0.5, 0]]


def test_reads_unequal_lengths_missing_values_comments_and_blank_lines(tmp_path):
    text = (
        "\n# c\n@CLASSLABEL TRUE b a\n@equallength FALSE\n@dimension 2\n@DATA\n\n"
        "1, ? ,NaN:nan,2,3: a \n#c\n4:5:b\n\n"
    )
    dataset = load_ts(write(tmp_path, text, "some.set.ts"))
    assert dataset.name == "some"
    assert dataset.classes == ("a", "b")
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.lengths.tolist() == [3, 1]
    nan = np.nan
    np.testing.assert_array_equal(dataset.series[0], [[1, nan], [nan, 2], [nan, 3]])


def test_tags_may_be_followed_by_tabs_and_target_label_is_an_alias(tmp_path):
    dataset = load_ts(write(tmp_path, "@univariate\ttrue\n@targetLabel true x y\n@data\n1,2:y\n"))
    assert dataset.classes == ("x", "y")
    assert dataset.series[0].tolist() == [[1], [2]]


def test_series_length_bounds_unequal_lengths(tmp_path):
    header = HEADER.replace("@equalLength true", "@equalLength false")
    path = write(tmp_path, header + "1:4:1\n")
    assert load_ts(path).lengths.tolist() == [1]
    refuse(load_ts, path, header + "1,2,3,4:1,2,3,4:1\n", 11, "at most 3 time steps", "got 4")


def test_load_dataset_chooses_by_suffix(tmp_path):
    path = tmp_path / "toy.ts.gz"
    path.write_bytes(gzip.compress(TOY.encode()))
    assert load_dataset(path).num_examples == 2
    with pytest.raises(ValueError, match=r"ending in \.ts or \.arff.*'toy\.csv'; rename"):
        load_dataset(tmp_path / "toy.csv")
    with pytest.raises(FileNotFoundError, match="check the path, or download"):
        load_dataset(tmp_path / "none.ts")


@pytest.mark.parametrize(
    ("data", "line", "parts"),
    cases(
        {
            "no examples": ("", 10, ["at least one example after @data", "the end of the file"]),
            "cut in a value": (
                "1,2,3:4,5,6:1\n1,2,3:4,5,6\n",
                12,
                [
                    "2 dimensions (as the header declares) and a label",
                    "2 and no label",
                    "cut short",
                ],
            ),
            "cut in a dimension": (
                "1,2,3:4,5,6:1\n1,2,3:4,5",
                12,
                ["2 and no label", "fetch the file again"],
            ),
            "cut after the first dimension": ("1,2,3\n", 11, ["2 dimensions", "1 and no label"]),
            "dimension shorter": (
                "1,2,3:4,5:1\n",
                11,
                ["all dimensions of an example of one length", "lengths [3, 2]"],
            ),
            "too few dimensions": ("1,2,3:1\n", 11, ["2 dimensions", "1 and a label"]),
            "too many dimensions": ("1,2,3:1,2,3:1,2,3:1\n", 11, ["2 dimensions", "3 and a label"]),
            "other length": ("1,2:4,5:1\n", 11, ["3 time steps (as the header declares)", "got 2"]),
            "empty label": ("1,2,3:4,5,6:\n", 11, ["a class label among '1', '10', '2'", "got ''"]),
            "wrong label": (
                "1,2,3:4,5,6:7\n",
                11,
                [
                    "a class label among '1', '10', '2'",
                    "got '7'",
                    "declare the label in the header",
                ],
            ),
            "label with a blank": (
                "1,2,3:4,5,6:standing still\n",
                11,
                ["a class label without blanks", "got 'standing still'", "write 'standing_still'"],
            ),
            "label that may be cut": (
                "1,2,3:4,5,6:1",
                11,
                [
                    "may be a cut '10'",
                    "'1' and the end of the file",
                    "end the last line with a newline",
                ],
            ),
            "not a number": (
                "1,2,3:4,five,6:1\n",
                11,
                [
                    "a finite number, or ?",
                    "'five' in dimension 1 at time step 1",
                    "correct the value",
                ],
            ),
            "empty value": ("1,,3:4,5,6:1\n", 11, ["got '' in dimension 0 at time step 1"]),
            "python number": ("1_0,2,3:4,5,6:1\n", 11, ["got '1_0' in dimension 0 at time step 0"]),
            "infinite": ("1,2,3:4,5,-inf:1\n", 11, ["got '-inf' in dimension 1 at time step 2"]),
            "overflow": ("1,2,1e999:4,5,6:1\n", 11, ["got '1e999' in dimension 0 at time step 2"]),
            "bad value beside a missing one": (
                "?,x,3:4,5,6:1\n",
                11,
                ["got 'x' in dimension 0 at time step 1"],
            ),
            "missing value": (
                "1,2,3:4,?,6:1\n",
                11,
                ["@missing false", "dimension 1 at time step 1", "declare @missing true"],
            ),
            "missing value as NaN": ("1,2,3:NaN,5,6:1\n", 11, ["dimension 1 at time step 0"]),
            "joined files": (
                TOY + TOY,
                14,
                ["@data ends the header", "the tag '@problemName Toy'"],
            ),
        }
    ),
)
def test_refuses_bad_data(tmp_path, data, line, parts):
    text = data if data.startswith("#") else HEADER + data
    refuse(load_ts, tmp_path / "toy.ts", text, line, *parts)


def test_refuses_dimensions_that_differ_between_lines(tmp_path):
    text = without("@dimensions") + "1,2,3:4,5,6:1\n1,2,3:1\n"
    refuse(
        load_ts,
        tmp_path / "toy.ts",
        text,
        11,
        "2 dimensions (as in the first example, line 10)",
        "got 1 and",
    )


def test_refuses_lengths_that_differ_under_equal_length(tmp_path):
    text = without("@seriesLength") + "1,2,3:4,5,6:1\n1,2:3,4:1\n"
    refuse(
        load_ts,
        tmp_path / "toy.ts",
        text,
        11,
        "3 time steps (as in the first example, line 10)",
        "got 2",
    )


def test_refuses_two_dimensions_under_univariate(tmp_path):
    text = "@univariate true\n@classLabel true a\n@data\n1:2:a\n"
    refuse(load_ts, tmp_path / "toy.ts", text, 4, "1 dimensions", "got 2 and a label")


def test_refuses_an_only_example_that_may_be_cut(tmp_path):
    # Whole, it could be "1,2,3:2.5,4,5:1".
    text = without("@dimensions") + "1,2,3:2"
    refuse(load_ts, tmp_path / "toy.ts", text, 10, "a newline after an only example", "got neither")
    path = write(tmp_path, text + "\n")
    assert load_ts(path).num_channels == 1


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    cases(
        {
            "empty file": ("", 1, ["@data", "an empty file", "truncated"]),
            "no @data": (HEADER.replace("@data\n", ""), 9, ["@data", "the end of the file"]),
            "cut tag": (
                HEADER.replace("@data\n", "@da"),
                10,
                ["a header tag", "'@da'", "a .ts file"],
            ),
            "data without @data": (
                HEADER.replace("@data\n", DATA),
                10,
                ["a header tag", "or @data"],
            ),
            "another file": ("<html>\n", 1, ["a header tag", "'<html>'", "check that this is"]),
            "misspelt tag": ("@equalLenght true\n", 1, ["@equallength", "'@equalLenght true'"]),
            "duplicate": (
                HEADER.replace("@data", "@missing true"),
                10,
                ["@missing once", "first on line 4", "remove one of the two lines"],
            ),
            "duplicate alias": (
                HEADER.replace("@data", "@dimension 2"),
                10,
                ["@dimension once", "first on line 6"],
            ),
            "no labels": (
                without("@classLabel"),
                9,
                ["@classLabel true and the class labels", "none"],
            ),
            "no label list": ("@targetLabel true\n", 1, ["@targetLabel true and", "real numbers"]),
            "unlabeled": ("@classLabel false\n", 1, ["'@classLabel false'", "without labels"]),
            "repeated label": ("@classLabel true a b a\n", 1, ["distinct labels", "'true a b a'"]),
            "time stamps": (
                "@timestamps true\n",
                1,
                ["@timestamps false", "not supported", "resample"],
            ),
            "not a boolean": ("@missing maybe\n", 1, ["true or false after @missing", "'maybe'"]),
            "no boolean": ("@equalLength\n", 1, ["true or false after @equalLength", "''"]),
            "no length": (
                "@seriesLength 0\n",
                1,
                ["a positive integer after @seriesLength", "'0'"],
            ),
            "many digits": (
                f"@dimensions {'9' * 5000}\n",
                1,
                ["a positive integer after @dimensions, below 1,000,000,000", "'9999"],
            ),
            "no count": ("@dimensions six\n", 1, ["a positive integer after @dimensions", "'six'"]),
            "no name": ("@problemName\n", 1, ["a name after @problemName", "nothing"]),
            "contradiction": (
                HEADER.replace("@univariate false", "@univariate true"),
                10,
                ["agrees with itself", "@univariate true and @dimensions 2"],
            ),
        }
    ),
)
def test_refuses_bad_headers(tmp_path, text, line, parts):
    refuse(load_ts, tmp_path / "toy.ts", text, line, *parts)


@pytest.mark.parametrize("declared", [True, False])
def test_no_truncation_loads_a_wrong_example(tmp_path, declared):
    text = (HEADER if declared else without("@dimensions", "@seriesLength", "@equalLength")) + DATA
    whole = load_ts(write(tmp_path, text))
    loaded = set()
    for size in range(len(text)):
        path = write(tmp_path, text[:size])
        try:
            dataset = load_ts(path)
        except DataFormatError:
            continue
        assert_same_examples(dataset, whole.subset(range(dataset.num_examples)))
        loaded.add(size)
    # Whole lines alone: after one (its newline alone cuts off, as no longer label begins with its
    # own), after both, and where the last newline is cut off.
    first_line = text.index("10\n-1") + 3
    ends = {first_line - 1, first_line, len(text) - 1}
    assert loaded == (ends if declared else ends - {first_line - 1})


def assert_same_examples(actual: TimeSeriesDataset, expected: TimeSeriesDataset):
    assert actual.classes == expected.classes
    assert actual.labels.tolist() == expected.labels.tolist()
    assert actual.num_examples == expected.num_examples
    for one, other in zip(actual.series, expected.series, strict=True):
        np.testing.assert_array_equal(one, other)


finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(
    st.characters(categories=["L", "N", "P", "S"], exclude_characters=",:"), min_size=1, max_size=5
)


@st.composite
def datasets(draw):
    classes = in_order(draw(st.sets(names, min_size=1, max_size=4)))
    num_channels = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    value = finite | st.just(np.nan)
    series = tuple(
        np.array(
            draw(st.lists(value, min_size=length * num_channels, max_size=length * num_channels))
        ).reshape(length, num_channels)
        for length in lengths
    )
    labels = draw(
        st.lists(st.integers(0, len(classes) - 1), min_size=len(lengths), max_size=len(lengths))
    )
    channels = tuple(f"dim_{index}" for index in range(num_channels))
    return TimeSeriesDataset("Random", series, np.array(labels, np.int32), classes, channels)


def to_ts(dataset):
    """Writes a data set in .ts format; repr gives every float exactly."""
    lines = [f"@problemName {dataset.name}", "@classLabel true " + " ".join(dataset.classes)]
    lines.append("@data")
    for values, label in zip(dataset.series, dataset.labels, strict=True):
        dimensions = [
            ",".join("?" if np.isnan(value) else repr(float(value)) for value in channel)
            for channel in values.T
        ]
        lines.append(":".join([*dimensions, dataset.classes[label]]))
    return "\n".join(lines) + "\n"


@given(dataset=datasets())
def test_write_and_read_back(tmp_path_factory, dataset):
    path = write(tmp_path_factory.getbasetemp(), to_ts(dataset), "random.ts")
    loaded = load_ts(path)
    assert loaded.name == dataset.name
    assert loaded.channels == dataset.channels
    assert_same_examples(loaded, dataset)


@given(position=st.integers(0, len(TOY) - 1), removed=st.integers(0, 3), added=st.text(max_size=3))
def test_damage_anywhere_is_a_format_error_or_a_well_formed_file(
    tmp_path_factory, position, removed, added
):
    text = TOY[:position] + added + TOY[position + removed :]
    path = tmp_path_factory.getbasetemp() / "damaged.ts"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        dataset = load_ts(path)
    except DataFormatError as error:
        assert str(error).startswith(f"{path}:")
    else:
        assert dataset.num_examples >= 1


def test_labels_with_the_separators_of_values(tmp_path):
    text = "@classLabel true a:b b a,c\n@data\n1,2:3,4:a:b\n1,2:3,4:b\n1,2:3,4:a,c\n"
    dataset = load_ts(write(tmp_path, text))
    assert [dataset.classes[label] for label in dataset.labels] == ["a:b", "b", "a,c"]
    assert dataset.num_channels == 2
    many = "@classLabel true a:b b:a:b b\n@data\n1,2:3,4:b:a:b\n1,2:3,4:a:b\n1,2:a:b\n"
    with pytest.raises(DataFormatError, match=r":5: expected 2 dimensions .* got 1 and a label"):
        load_ts(write(tmp_path, many))


def test_numbers_as_labels_are_in_the_order_of_numbers(tmp_path):
    dataset = load_ts(write(tmp_path, "@classLabel true 1.0 10.0 2.0\n@data\n1:10.0\n2:2.0\n"))
    assert dataset.classes == ("1.0", "2.0", "10.0") and dataset.labels.tolist() == [2, 1]


def test_many_classes_are_read_in_time(tmp_path, bounded):
    labels = [f"class:{i}" for i in range(20_000)]
    lines = "".join(f"1,2:{label}\n" for label in labels[:2000])
    path = write(tmp_path, f"@classLabel true {' '.join(labels)}\n@data\n{lines}")
    with bounded():
        assert load_ts(path).num_examples == 2000
        with pytest.raises(DataFormatError, match=r"'class:0', .* and 19,980 more at the end"):
            load_ts(write(tmp_path, path.read_text() + "1,2:none\n"))
