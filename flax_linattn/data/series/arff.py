"""The ``.arff`` format (Weka) of the UEA and UCR archives."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flax_linattn.checks import quote
from flax_linattn.data.errors import REPAIR_ADVICE, DataFormatError
from flax_linattn.data.files.text_files import LineReader
from flax_linattn.data.series.dataset import TimeSeriesDataset
from flax_linattn.data.series.validation import ExampleBuilder

_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_QUOTED_CELL = re.compile(rf"\s*{_QUOTED}\s*,")
_QUOTED_LABEL = re.compile(_QUOTED)
_ATTRIBUTE = re.compile(r"""('[^']*'|"[^"]*"|[^\s'"]+)\s+(\S.*)""")
_NUMERIC = ("numeric", "real", "integer")


def load_arff(path: str | Path) -> TimeSeriesDataset:
    r"""Loads a classification problem in ``.arff`` format, plain, ``.gz`` or ``.xz``.

    Two layouts exist, both with a nominal class attribute last. Multivariate: one relational
    attribute, whose value is a quoted string with one row of values per dimension; rows are
    separated by a literal ``\n``. Univariate: one numeric attribute for each time step. ``?`` is a
    missing value. The format is rectangular and the archives fill shorter series up with ``?``, so
    trailing time steps that are missing in every dimension are dropped. Lines that begin with ``%``
    are comments.

    Args:
        path: The file.

    Returns:
        The data set; its channels are ``dim_0``, ``dim_1``, ...

    Raises:
        FileNotFoundError: If the file does not exist.
        DataFormatError: If the file breaks the format or its own header, or is truncated.

    Example:
        >>> import pathlib, tempfile
        >>> text = r'''@relation toy
        ... @attribute steps relational
        ... @attribute t0 numeric
        ... @attribute t1 numeric
        ... @attribute t2 numeric
        ... @end steps
        ... @attribute trend {down,up}
        ... @data
        ... '3,2,1\n0,0,1',down
        ... '4,5,?\n1,1,?',up
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.arff")
        ...     _ = path.write_text(text)
        ...     dataset = load_arff(path)
        >>> dataset.series[1].tolist(), dataset.labels.tolist()
        ([[4.0, 1.0], [5.0, 1.0]], [0, 1])
    """
    # scipy.io.arff reads the same values in 1.4 to 2.5 times the time, and names no lines.
    with LineReader(path) as reader:
        header = _read_header(reader)
        builder = ExampleBuilder(
            reader,
            header.classes,
            dimensions=None if header.relational else 1,
            length=header.length,
            padded=True,
        )
        for text in reader.content("%"):
            if header.relational:
                builder.add(*_split_relational(reader, text))
            else:
                values, label = _split_univariate(text)
                builder.add([values], _unquote(label.strip()))
        return builder.finish(header.name or reader.path.name.split(".")[0])


@dataclass
class _Header:
    name: str = ""
    relational: str = ""  # the relational attribute's name
    length: int = 0  # how many numeric attributes: time steps
    classes: tuple[str, ...] = ()
    names: set[str] = field(default_factory=set)


def _read_header(reader: LineReader) -> _Header:
    header = _Header()
    inside = False  # between the relational attribute and its @end
    for tag, value in reader.tags("%"):
        match tag.lower():
            case "@relation" if not header.name and value:
                header.name = _unquote(value)
            case "@attribute" if not header.classes:
                inside = _read_attribute(reader, header, value, inside)
            case "@end" if inside and _unquote(value) == header.relational:
                inside = False
            case _:
                raise _misplaced(reader, f"{tag} {value}".strip())
    if inside or not header.classes:
        raise _misplaced(reader, "@data")
    return header


def _misplaced(reader: LineReader, text: str) -> DataFormatError:
    return reader.error(
        "@relation, the numeric attributes (inside one relational attribute and its @end, where "
        "multivariate), a nominal class attribute, then @data, in this order and each once",
        quote(text),
        "check that this is a .arff file of the UEA or UCR archive",
    )


def _read_attribute(reader: LineReader, header: _Header, text: str, inside: bool) -> bool:
    """Adds one attribute to ``header``; returns whether a relational attribute is open."""
    match = _ATTRIBUTE.fullmatch(text)
    name, kind = (_unquote(match[1]), match[2]) if match else ("", "")
    if name in header.names:
        raise reader.error(
            "attributes of distinct names",
            f"{quote(name)} again",
            "remove or rename one of them",
        )
    header.names.add(name)
    nominal = kind.startswith("{") and kind.endswith("}")
    if kind.lower() in _NUMERIC and (inside or not header.relational):
        header.length += 1
    elif kind.lower() == "relational" and not header.names - {name}:
        header.relational = name
        return True
    elif nominal and header.length and not inside:
        reader.check_count(len(kind) // 2)
        labels = [_unquote(label) for label in _cells(kind[1:-1])]
        if "" in labels or len(set(labels)) != len(labels):
            raise reader.error(
                "distinct class labels, none of them empty",
                quote(kind),
                "list each label once",
            )
        header.classes = tuple(labels)
    else:
        raise reader.error(
            "an attribute 'NAME numeric', 'NAME relational' (first) or 'NAME {label,label,...}' "
            "(last, after the numeric ones)",
            quote(text),
            "correct the header, or fetch the file again",
        )
    return inside


def _cells(text: str) -> Iterator[str]:
    """Splits cells at commas in linear time; quotes stay around them."""
    text, begin = text + ",", 0
    while begin < len(text):
        quoted = _QUOTED_CELL.match(text, begin)
        end = quoted.end() if quoted else text.index(",", begin) + 1
        yield quoted[1] if quoted else text[begin : end - 1].strip()
        begin = end


def _split_univariate(text: str) -> tuple[str, str]:
    """Splits ``value,...,value,label`` into its values and its label, whose quotes stay."""
    begin = min((text.find(quotes) for quotes in "'\"" if quotes in text), default=0)
    values = text[:begin].rstrip()
    if values.endswith(",") and _QUOTED_LABEL.fullmatch(text, begin):
        return values[:-1], text[begin:]
    values, _, label = text.rpartition(",")
    return values, label


def _split_relational(reader: LineReader, text: str) -> tuple[list[str], str | None]:
    r"""Splits ``'row\nrow',label`` into its dimensions and its label."""
    quotes = text[0]
    body, closing, rest = text[1:].partition(quotes)
    if quotes not in "'\"" or not closing:
        raise reader.error(
            "a quoted text of dimensions, a comma and a class label",
            f"{quote(text)}" + (" without the closing quotes" if quotes in "'\"" else ""),
            REPAIR_ADVICE,
        )
    rest = rest.strip()
    return body.split(r"\n"), _unquote(rest[1:].strip()) if rest.startswith(",") else None


def _unquote(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if quoted else text
