"""The .arff loader: both layouts, what it refuses, and its agreement with .ts on real files."""

import numpy as np
import pytest

from flax_linattn.data import DataFormatError, load_arff, load_dataset
from tests.data.refusals import cases, refuse

RELATIONAL = r"""% A comment
@relation 'Toy set'

@attribute relationalAtt relational
@attribute att0 numeric
@attribute att1 real
@attribute 'att 2' INTEGER
@end relationalAtt
@attribute class {down, 'up', "upper"}

@data
"""
UNIVARIATE = """@RELATION toy
@ATTRIBUTE t0 NUMERIC
@ATTRIBUTE t1 NUMERIC
@ATTRIBUTE class {1.0,2.0}
@DATA
"""


def write(tmp_path, text, name="toy.arff"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_the_relational_layout(tmp_path):
    data = "'1,2,3\\n4,5,6',up\n\n% c\n\"-1,2e1,?\\n?,0,?\" , 'down'\n"
    dataset = load_arff(write(tmp_path, RELATIONAL + data))
    assert dataset.name == "Toy set"
    assert dataset.classes == ("down", "up", "upper")
    assert dataset.channels == ("dim_0", "dim_1")
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.series[0].tolist() == [[1, 4], [2, 5], [3, 6]]
    # The last time step misses in both dimensions: the series is shorter.
    np.testing.assert_array_equal(dataset.series[1], [[-1, np.nan], [20, 0]])


def test_reads_the_univariate_layout(tmp_path):
    path = tmp_path / "toy.arff"
    path.write_bytes((UNIVARIATE + "1,2,2.0\n3,?,1.0").replace("\n", "\r\n").encode())
    dataset = load_arff(path)
    assert dataset.labels.tolist() == [1, 0]
    assert [values.tolist() for values in dataset.series] == [[[1], [2]], [[3]]]


@pytest.mark.parametrize(
    ("data", "line", "parts"),
    cases(
        {
            "no examples": ("", 11, ["at least one example after @data", "fetch it again"]),
            "cut in the quotes": (
                "'1,2,3\\n4,5",
                12,
                ["a quoted text of dimensions", "without the closing quote", "cut short"],
            ),
            "no quotes": ("1,2,3,up\n", 12, ["a quoted text of dimensions", "'1,2,3,up'"]),
            "no label": ("'1,2,3\\n4,5,6'\n", 12, ["2 dimensions", "got 2 and no label"]),
            "label that may be cut": ("'1,2,3\\n4,5,6',up", 12, ["may be a cut 'upper'"]),
            "dimensions differ": (
                "'1,2,3\\n4,5,6',up\n'1,2,3',up\n",
                13,
                ["2 dimensions (as in the first example, line 12)", "got 1 and a label"],
            ),
            "not a number": ("'1,2,3\\n4,x,6',up\n", 12, ["got 'x' in dimension 1 at time step 1"]),
            "nothing but missing": ("'?,?,?\\n?,?,?',up\n", 12, ["at least one value", "remove"]),
        }
    ),
)
def test_refuses_bad_relational_data(tmp_path, data, line, parts):
    refuse(load_arff, tmp_path / "toy.arff", RELATIONAL + data, line, *parts)


@pytest.mark.parametrize(
    ("data", "parts"),
    cases(
        {
            "cut in a value": ("1,2", ["a class label among '1.0', '2.0'", "got '2'"]),
            "a value missing": ("1,2.0\n", ["2 time steps", "got 1"]),
            "a value too many": ("1,2,3,2.0\n", ["2 time steps", "got 3"]),
            "one field": ("2.0\n", ["2 time steps", "got 1"]),
        }
    ),
)
def test_refuses_bad_univariate_data(tmp_path, data, parts):
    refuse(load_arff, tmp_path / "toy.arff", UNIVARIATE + data, 6, *parts)


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    cases(
        {
            "empty file": ("", 1, ["@data and the examples", "an empty file"]),
            "no @data": (RELATIONAL.replace("@data\n", ""), 10, ["the end of the file"]),
            "class before values": ("@attribute c {a}\n", 1, ["(last, after the numeric ones)"]),
            "@data before the class": ("@attribute t numeric\n@data\n", 2, ["then @data, in this"]),
            "no @end": (RELATIONAL.replace("@end relationalAtt\n", ""), 8, ["an attribute 'NAME"]),
            "wrong @end": ("@attribute r relational\n@end s\n", 2, ["and its @end", "'@end s'"]),
            "duplicate relation": ("@relation a\n@relation b\n", 2, ["each once", "'@relation b'"]),
            "duplicate attribute": (
                "@attribute t numeric\n@attribute t numeric\n",
                2,
                ["attributes of distinct names", "'t' again"],
            ),
            "second class": (
                UNIVARIATE.replace("@DATA", "@attribute more {a}"),
                5,
                ["each once", "'@attribute more {a}'"],
            ),
            "repeated label": (
                "@attribute t numeric\n@attribute c {a,a}\n",
                2,
                ["distinct class labels", "'{a,a}'"],
            ),
            "text attribute": ("@attribute t string\n", 1, ["'NAME numeric'", "'t string'"]),
            "cut attribute": ("@attribute t\n", 1, ["an attribute 'NAME numeric'", "got 't'"]),
            "a .ts file": ("@problemName x\n", 1, ["@relation", "check that this is a .arff file"]),
        }
    ),
)
def test_refuses_bad_headers(tmp_path, text, line, parts):
    refuse(load_arff, tmp_path / "toy.arff", text, line, *parts)


@pytest.mark.parametrize("header", [RELATIONAL, UNIVARIATE], ids=["relational", "univariate"])
def test_no_truncation_loads_a_wrong_example(tmp_path, header):
    lines = ["'1,2,3\\n4,5,6',down\n"] * 2 if header is RELATIONAL else ["1,2,2.0\n"] * 2
    text = header + "".join(lines)
    whole = load_arff(write(tmp_path, text))
    loaded = []
    for size in range(len(text)):
        try:
            dataset = load_arff(write(tmp_path, text[:size]))
        except DataFormatError:
            continue
        for index, values in enumerate(dataset.series):
            np.testing.assert_array_equal(values, whole.series[index])
        assert dataset.labels.tolist() == whole.labels[: dataset.num_examples].tolist()
        loaded.append(size)
    first_line = len(header) + len(lines[0])
    assert loaded == [first_line - 1, first_line, len(text) - 1]


@pytest.mark.parametrize("name", ["BasicMotions", "UWaveGestureLibrary"])
def test_ts_and_arff_of_a_real_set_are_equal(data_dir, name):
    ts = load_dataset(data_dir / "uea" / name / f"{name}_TRAIN.ts.gz")
    arff = load_dataset(data_dir / "uea" / name / f"{name}_TRAIN.arff.gz")
    assert (ts.name, ts.classes, ts.channels) == (arff.name, arff.classes, arff.channels)
    assert ts.labels.tolist() == arff.labels.tolist()
    assert ts.num_examples == arff.num_examples
    for one, other in zip(ts.series, arff.series, strict=True):
        np.testing.assert_array_equal(one, other)


def test_univariate_files_of_a_real_set_are_its_dimensions(data_dir):
    folder = data_dir / "uea" / "UWaveGestureLibrary"
    whole = load_dataset(folder / "UWaveGestureLibrary_TRAIN.ts.gz")
    for channel in range(3):
        name = f"UWaveGestureLibraryDimension{channel + 1}_TRAIN.arff.gz"
        single = load_dataset(folder / name)
        assert single.labels.tolist() == whole.labels.tolist()
        for one, other in zip(single.series, whole.series, strict=True):
            np.testing.assert_array_equal(one[:, 0], other[:, channel])


def test_a_header_of_blanks_is_read_in_time(tmp_path, bounded):
    header = "@relation toy\n@attribute t0 numeric\n@attribute class {{a{}b}}\n@data\n1,a\n"
    quotes = ",".join(["'\\\\,\"x"] * 20_000)
    with bounded():
        for between in (" " * 100_000, f", {quotes},"):
            with pytest.raises(DataFormatError):
                load_arff(write(tmp_path, header.format(between)))


def test_labels_of_any_text(tmp_path):
    header = (
        "@relation toy\n@attribute t0 numeric\n@attribute class {'a,b', c, 'it\\'s', \"x y\"}\n"
    )
    path = tmp_path / "toy.arff"
    path.write_text(header + "@data\n1,'a,b'\n2,c\n3, 'it\\'s'\n4,\"x y\"\n")
    dataset = load_arff(path)
    names = [dataset.classes[label] for label in dataset.labels]
    assert names == ["a,b", "c", "it's", "x y"]
