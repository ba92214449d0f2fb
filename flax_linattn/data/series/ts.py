"""The ``.ts`` format of the UEA and UCR archives, as sktime and aeon define it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax_linattn.checks import quote
from flax_linattn.data.files.text_files import LineReader
from flax_linattn.data.series.dataset import TimeSeriesDataset
from flax_linattn.data.series.validation import ExampleBuilder


def load_ts(path: str | Path) -> TimeSeriesDataset:
    r"""Loads a classification problem in ``.ts`` format, plain, ``.gz`` or ``.xz``.

    A header of tags (any case) ends with ``@data``; then comes one example per line: dimensions
    separated by ``:``, values by ``,``, the class label last; ``?`` and ``NaN`` are missing values.
    Lengths may differ between examples, but not between the dimensions of an example. Lines that
    begin with ``#`` are comments. The tags: ``@problemName``, ``@timestamps`` (only false),
    ``@missing``, ``@univariate``, ``@dimensions`` or ``@dimension``, ``@equalLength``,
    ``@seriesLength``, ``@classLabel`` or ``@targetLabel`` (``true`` and the labels; required).

    A truncated file cannot be detected if whole lines are missing; compare ``num_examples`` with
    the number that the archive states.

    Args:
        path: The file.

    Returns:
        The data set; its channels are ``dim_0``, ``dim_1``, ...

    Raises:
        FileNotFoundError: If the file does not exist.
        DataFormatError: If the file breaks the format or its own header, or is truncated.

    Example:
        >>> import pathlib, tempfile
        >>> text = "@classLabel true down up\n@data\n3,2,?:0,0,1:down\n4,5:1,1:up\n"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.ts")
        ...     _ = path.write_text(text)
        ...     dataset = load_ts(path)
        >>> dataset.name, dataset.lengths.tolist(), dataset.labels.tolist()
        ('toy', [3, 2], [0, 1])
        >>> dataset.series[1].tolist()
        [[4.0, 1.0], [5.0, 1.0]]
    """
    with LineReader(path) as reader:
        header = _read_header(reader)
        classes = frozenset(header["classlabel"])
        dimensions = 1 if header.get("univariate") else header.get("dimensions")
        colons = max(label.count(":") for label in classes)
        builder = ExampleBuilder(
            reader,
            header["classlabel"],
            dimensions=dimensions,
            length=header.get("serieslength"),
            equal_length=header.get("equallength"),
            missing=header.get("missing"),
        )
        for text in reader.content("#"):
            if text.startswith("@"):
                raise reader.error(
                    "an example, as @data ends the header",
                    f"the tag {quote(text)}",
                    "move it above @data, or split files that were joined",
                )
            builder.add(*_split(reader, text, classes, colons))
        dataset = builder.finish(header.get("problemname", reader.path.name.split(".")[0]))
        if dataset.num_examples == 1 and dimensions is None and not reader.terminated:
            # Nothing else distinguishes the label from the first value of a truncated dimension.
            raise reader.error(
                "a newline after an only example, or @dimensions in the header",
                "neither",
                "end the line with a newline if the file is whole, or fetch it again",
            )
        return dataset


def _split(
    reader: LineReader, text: str, classes: frozenset[str], colons: int
) -> tuple[list[str], str | None]:
    """Splits an example into dimensions and label, which may contain ``colons`` colons."""
    *dimensions, last = text.split(":")
    for count in range(min(colons, len(dimensions) - 1), -1, -1):  # one may end another
        end = len(dimensions) - count
        label = ":".join([*dimensions[end:], last])
        if end and label in classes:
            return dimensions[:end], label
    # A line without its label ends in values.
    if "," in last or not dimensions:
        return [*dimensions, last], None
    return dimensions, _label(reader, last.strip())


def _label(reader: LineReader, text: str) -> str:
    if len(text.split()) > 1:
        raise reader.error(
            "a class label without blanks, because blanks separate the labels of the header",
            quote(text),
            f"write {quote('_'.join(text.split()))} in both places",
        )
    return text


def _read_header(reader: LineReader) -> dict[str, Any]:
    header: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for tag, value in reader.tags("#"):
        key = _ALIASES.get(tag.lower(), tag.lower()).removeprefix("@")
        if key not in _TAGS or not tag.startswith("@"):
            raise reader.error(
                "a header tag (" + ", ".join(f"@{name}" for name in _TAGS) + ") or @data",
                quote(f"{tag} {value}".strip()),
                "correct the tag, or check that this is a .ts file",
            )
        if key in header:
            raise reader.error(
                f"{tag} once",
                f"it again (first on line {lines[key]})",
                "remove one of the two lines",
            )
        header[key] = _TAGS[key](reader, tag, value)
        lines[key] = reader.line
    if "classlabel" not in header:
        raise reader.error(
            "@classLabel true and the class labels before @data",
            "none",
            "add the line '@classLabel true <label> <label> ...' to the header",
        )
    if header.get("univariate") and header.get("dimensions", 1) != 1:
        raise reader.error(
            "a header that agrees with itself",
            f"@univariate true and @dimensions {header['dimensions']}",
            "correct one of the two",
        )
    return header


def _text(reader: LineReader, tag: str, value: str) -> str:
    if not value:
        raise reader.error(f"a name after {tag}", "nothing", "add it, or remove the tag")
    return value


def _boolean(reader: LineReader, tag: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise reader.error(f"true or false after {tag}", quote(value), "correct the header")
    return value.lower() == "true"


def _positive(reader: LineReader, tag: str, value: str) -> int:
    # Python refuses to read thousands of digits.
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value)):
        raise reader.error(
            f"a positive integer after {tag}, below 1,000,000,000",
            quote(value),
            "correct the header",
        )
    return int(value)


def _no_timestamps(reader: LineReader, tag: str, value: str) -> bool:
    if _boolean(reader, tag, value):
        raise reader.error(
            f"{tag} false",
            "true: series with time stamps are not supported",
            "resample them to a regular grid and write the values alone",
        )
    return False


def _class_labels(reader: LineReader, tag: str, value: str) -> tuple[str, ...]:
    reader.check_count(len(value) // 2)
    flag, *labels = value.split() or [""]
    if flag.lower() != "true" or not labels:
        raise reader.error(
            f"{tag} true and the class labels",
            quote(f"{tag} {value}"),
            "this loader reads classification problems: list the labels (a file without labels, "
            "or with real numbers as targets, is not supported)",
        )
    if len(set(labels)) != len(labels):
        raise reader.error(f"distinct labels after {tag}", quote(value), "list each label once")
    return tuple(labels)


_ALIASES = {"@dimension": "@dimensions", "@targetlabel": "@classlabel"}

_TAGS: dict[str, Callable[[LineReader, str, str], Any]] = {
    "problemname": _text,
    "timestamps": _no_timestamps,
    "missing": _boolean,
    "univariate": _boolean,
    "dimensions": _positive,
    "equallength": _boolean,
    "serieslength": _positive,
    "classlabel": _class_labels,
}
