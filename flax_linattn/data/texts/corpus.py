"""Texts for language models: documents of files as one memory-mapped sequence of tokens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, itemize, quote
from flax_linattn.data.errors import DataFormatError, report_damage
from flax_linattn.data.files.file_tree import ARCHIVES, FileTree
from flax_linattn.data.files.text_files import (
    LineReader,
    check_is_file,
    find_opener,
    open_uncompressed,
)
from flax_linattn.data.tables.arrow_files import read_parquet_column
from flax_linattn.data.texts.tokenizers import (
    ByteTokenizer,
    JsonTokenizer,
    Tokenizer,
    decode_utf8,
    load_tokenizer,
    make_tokenizer,
    train_tokenizer,
)
from flax_linattn.storage import atomic_write, file_lock, remove_unfinished, user_cache, write_text

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
"""Names of the parts of a folder: of its folders, or words in the names of its files."""
_PARQUET = (".parquet", ".pq")
_JSON_LINES = (".jsonl", ".ndjson")
_UNREAD = re.compile(r"\.(zst|lz4)$|\.(jsonl|ndjson|parquet|pq)\.\w+$", re.IGNORECASE)
"""Names of compressed files whose bytes would be taken for a text."""
_NO_DOCUMENT = re.compile(
    r"\.(jsonl|ndjson|parquet|pq|gz|xz|bz2|zst|lz4|zip|tar|tgz)$", re.IGNORECASE
)
"""Names of files that hold several documents, or compressed ones."""
_PIECE = 2**20
"""Number of bytes of a text to tokenize at once, up to the end of a line."""
_MAX_PIECE = 2**24
"""Number of bytes after which a line is cut: at least ``_PIECE`` and more than a character."""
TRAINED_BYTES = 2**26
"""Maximum number of bytes that a tokenizer is trained on."""

Tokens = NDArray[np.integer]
"""Tokens ``[N]``, usually memory-mapped."""


class Piece(NamedTuple):
    """A piece of the text of a document.

    Attributes:
        text: Bytes, whole lines except for the last piece and lines of many million bytes, which
            are cut between characters.
        begins: Whether the piece begins a document.
    """

    text: bytes
    begins: bool


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens of a training, validation and test text.

    Attributes:
        name: Name of the file or folder.
        tokenizer: The tokenizer.
        train: Tokens of the training text.
        validation: Tokens of the validation text.
        test: Tokens of the test text.
        has_documents: Whether ``tokenizer.begin`` begins each document; a single text has none.
        notes: Notes on the files.
    """

    name: str
    tokenizer: Tokenizer
    train: Tokens
    validation: Tokens
    test: Tokens
    has_documents: bool
    notes: tuple[str, ...] = ()


class TextSource:
    """The documents of a file, a folder or an archive.

    Args:
        path: A text file (also .gz, .xz or .bz2), a .jsonl (also .gz or .xz) or .parquet table with
            a document in each row, or a folder or archive with a document in each file.
        column: Column of the documents in a table. Default: "text".
        ratios: Sizes of the parts of a folder, see ``split_names``.
        has_documents: Whether to mark the beginnings of documents. Default: in tables, folders and
            archives.

    Attributes:
        path: As given.
        parts: Names of the files of "train", "validation" and "test" of a folder or archive; empty
            for other texts.
        has_documents: Whether documents are marked, as opposed to one text.
        notes: Notes on skipped files.

    Raises:
        FileNotFoundError: If there is nothing at ``path``.
        DataFormatError: If a folder has no files, or holds tables; or if a file has an unknown
            compression.
    """

    def __init__(
        self,
        path: Path,
        column: str | None = None,
        ratios: tuple[float, float, float] = (90.0, 5.0, 5.0),
        has_documents: bool | None = None,
    ) -> None:
        self.path = path
        self.notes: tuple[str, ...] = ()
        self.parts: dict[str, list[str]] = {}
        self._tree: FileTree | None = None
        is_table = is_text_table(path)
        if column is not None and not is_table:
            raise OptionError(
                f"column={column!r} needs a .jsonl or .parquet file, got {path}; remove it.",
                "column",
            )
        self._column = ("text" if column is None else column) if is_table else None
        if path.is_dir() or path.name.lower().endswith(ARCHIVES):
            self._tree = FileTree(path)
            self.parts = split_names(self._choose(self._tree), ratios)
        else:
            check_is_file(path)
            if not is_table and _UNREAD.search(path.name):
                raise DataFormatError(
                    f"{path}: expected a text (also .gz, .xz or .bz2), a .jsonl (also .gz or .xz) "
                    "or .parquet table, found another compression; decompress the file"
                )
        self._is_text = not is_table and self._tree is None
        self.has_documents = not self._is_text if has_documents is None else has_documents

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of the file are the text."""
        return not self.has_documents and self._is_text and find_opener(self.path) is None

    def _choose(self, tree: FileTree) -> list[str]:
        names = sorted(name for name, size in tree.sizes.items() if size)
        texts = [name for name in names if name.lower().endswith((".txt", ".md", ".tokens"))]
        if texts and len(texts) < len(names):
            self.notes = (
                f"files other than .txt, .md and .tokens are skipped: {len(names) - len(texts):,}",
            )
        if not names:
            raise DataFormatError(
                f"{tree.path}: expected a folder or archive of texts, found only empty files or "
                "none; check the path"
            )
        if not texts and (other := next(filter(_NO_DOCUMENT.search, names), None)):
            raise DataFormatError(
                f"{tree.place(other)}: expected a folder or archive with a document in each file, "
                "found a table or a compressed file; pass a single table, or decompress the files"
            )
        return texts or names

    def pieces(self, part: str | None = None) -> Iterator[Piece]:
        """Yields the pieces of the documents, all or of a part of ``parts``."""
        if self._tree is not None:
            names = [name for own in self.parts.values() for name in own]
            for _, content in self._tree.read(names if part is None else self.parts[part]):
                yield Piece(content, True)
        elif self._column is None:
            yield from self._text_pieces()
        elif self.path.suffix.lower() in _PARQUET:
            yield from self._parquet_rows(self._column)
        else:
            yield from self._json_lines(self._column)

    def _text_pieces(self) -> Iterator[Piece]:
        with (
            report_damage(self.path, "a text, plain or compressed"),
            open_uncompressed(self.path) as file,
        ):
            begins, rest = True, b""
            while block := file.read(_PIECE):
                end = len(rest) + block.rfind(b"\n") + 1
                is_cut = end > len(rest)
                rest += block
                if not is_cut and len(rest) >= _MAX_PIECE:
                    end, is_cut = _character_border(rest, len(rest) - 1), True
                if is_cut:
                    yield Piece(rest[:end], begins)
                    begins, rest = False, rest[end:]
            if rest:
                yield Piece(rest, begins)

    def _json_lines(self, column: str) -> Iterator[Piece]:
        with LineReader(self.path, is_strict=True) as lines:
            for line in lines:
                if not line.strip():
                    continue
                place = f"{self.path}:{lines.line}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DataFormatError(
                        f"{place}: expected a JSON object in each line, got invalid JSON "
                        f"({quote(error, 80)})"
                    ) from error
                value = row.get(column) if isinstance(row, dict) else None
                if not isinstance(value, str):
                    names = itemize([quote(n) for n in row]) if isinstance(row, dict) else "no keys"
                    raise DataFormatError(
                        f"{place}: expected a string {column!r}, found {names}; choose another "
                        "column",
                        "column",
                    )
                if value:
                    yield Piece(value.encode(errors="surrogatepass"), True)

    def _parquet_rows(self, column: str) -> Iterator[Piece]:
        with report_damage(self.path, "a Parquet file"):
            for row, text in enumerate(read_parquet_column(self.path, column)):
                if not isinstance(text, str):
                    raise DataFormatError(
                        f"{self.path}, row {row} (counting from 0): expected a string {column!r}, "
                        f"got {quote(text)}; choose another column",
                        "column",
                    )
                if text:
                    yield Piece(text.encode(), True)


def is_text_table(path: Path) -> bool:
    """Whether a file has a document in each row of a column."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".xz")
    return name.endswith(_JSON_LINES) or path.suffix.lower() in _PARQUET


def split_names(names: Sequence[str], ratios: tuple[float, float, float]) -> dict[str, list[str]]:
    """Splits files into "train", "validation" and "test" by their names.

    Names that contain a word of ``SPLITS`` belong to that part. If no names mark a validation part,
    or any part, files are chosen by the hashes of their names, so that all parts have the same
    kinds of files.

    Example:
        >>> parts = split_names(["train/a.txt", "train/b.txt", "wiki_test.txt"], (1.0, 1.0, 1.0))
        >>> sorted(map(len, parts.values())), parts["test"]
        ([1, 1, 1], ['wiki_test.txt'])
    """
    parts: dict[str, list[str]] = {part: [] for part in SPLITS}
    for name in names:
        *folders, file = name.lower().split("/")
        words = {*folders, *re.split(r"[^a-z]+", file)}
        for part, known in SPLITS.items():
            if words.intersection(known):
                parts[part].append(name)
                break
        else:
            return _split_by_hash(names, dict(zip(SPLITS, ratios, strict=True)))
    if not parts["train"] or not parts["test"]:
        return _split_by_hash(names, dict(zip(SPLITS, ratios, strict=True)))
    if not parts["validation"]:
        parts |= _split_by_hash(parts["train"], {"train": ratios[0], "validation": ratios[1]})
    return parts


def _split_by_hash(names: Sequence[str], ratios: Mapping[str, float]) -> dict[str, list[str]]:
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    parts, start, total = {}, 0, 0.0
    for part, ratio in ratios.items():
        total += ratio
        end = round(total / sum(ratios.values()) * len(names))
        parts[part] = sorted(ordered[start:end])
        start = end
    return parts


def load_corpus(
    path: Path,
    *,
    column: str | None = None,
    tokenizer: Path | Tokenizer | None = None,
    vocabulary: int = 0,
    ratios: tuple[float, float, float] = (90.0, 5.0, 5.0),
    folder: Path | None = None,
) -> Corpus:
    """Loads a text for a language model, with its tokens on disk.

    The bytes of a plain text file are memory-mapped as they are. Other tokens are written once to
    ``folder``, under a name that depends on the files and the tokenizer.

    Args:
        path: See ``TextSource``.
        column: See ``TextSource``.
        tokenizer: File of a tokenizer, or a tokenizer. Default: bytes.
        vocabulary: Number of tokens of a tokenizer to train on the training text; 0 trains none.
        ratios: Relative sizes of the training, validation and test text, in this order; files of a
            folder are split by ``split_names``, and documents are not cut.
        folder: Folder of token files. Default: ``token_folder()``.

    Raises:
        FileNotFoundError: If a file is missing.
        DataFormatError: If a file is damaged, a column is missing, or the text is too short.
    """
    source = TextSource(path, column, ratios)
    folder = token_folder() if folder is None else folder
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer)
    if tokenizer is None and vocabulary:
        tokenizer = _train(source, vocabulary, ratios, folder)
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    if source.parts:
        train, validation, test = (
            write_tokens(source, tokenizer, folder, part=part) for part in SPLITS
        )
    else:
        tokens = write_tokens(source, tokenizer, folder)
        begin = tokenizer.begin if source.has_documents else None
        train, validation, test = split_tokens(tokens, ratios, begin)
    for name, part in zip(SPLITS, (train, validation, test), strict=True):
        if len(part) < 2:
            label = "training" if name == "train" else name
            advice = "a longer text"
            if source.has_documents:  # which are not cut: a long one may cover several parts
                advice = "more or shorter documents, or a test file"
            raise DataFormatError(
                f"{path}: expected a {label} text of at least 2 tokens, got {len(part)}; pass "
                f"{advice}, or make the {label} part larger"
            )
    has_documents = source.has_documents
    name = path.name.partition(".")[0] or path.resolve().name
    return Corpus(name, tokenizer, train, validation, test, has_documents, source.notes)


def token_folder() -> Path:
    """Folder of token files: flax-linattn/tokens in the user's cache folder."""
    return user_cache() / "flax-linattn" / "tokens"


def write_tokens(
    source: TextSource, tokenizer: Tokenizer, folder: Path, *, part: str | None = None
) -> Tokens:
    """Returns the tokens of a source as a memory-mapped array, and writes its file if needed."""
    if tokenizer.kind == ByteTokenizer.kind and source.is_plain:
        return _map(source.path, np.dtype(np.uint8))
    dtype = np.dtype(np.uint16 if tokenizer.num_tokens <= 2**16 else np.uint32)
    name = _source_hash(source, tokenizer.kind, tokenizer.data, part or "")
    path = folder / f"{name}.{dtype.name}"
    with file_lock(folder / f"{name}.lock", f"the tokens of {source.path}", wait=True):
        if not path.exists():
            remove_unfinished(path)
            with atomic_write(path) as file:
                _write(file, source, tokenizer, dtype, part)
    return _map(path, dtype)


def _write(
    file: BinaryIO, source: TextSource, tokenizer: Tokenizer, dtype: np.dtype, part: str | None
) -> None:
    is_bytes = tokenizer.kind == ByteTokenizer.kind
    for piece in source.pieces(part) if is_bytes else _utf8_pieces(source, part):
        tokens = tokenizer.encode(piece.text)
        if piece.begins and source.has_documents:
            file.write(np.array([tokenizer.begin], dtype).tobytes())
        file.write(tokens.astype(dtype).tobytes())


def _map(path: Path, dtype: np.dtype) -> Tokens:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)


def _source_hash(source: TextSource, *others: str) -> str:
    """A name for what is computed from a source: its path, size and time, and other texts."""
    files = [source.path]
    if source.path.is_dir():
        files = sorted(path for path in source.path.rglob("*") if path.is_file())
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(
        repr((2, stats, source._column, source.parts, source.has_documents, others)).encode()
    ).hexdigest()[:32]


def _train(
    source: TextSource, vocabulary: int, ratios: tuple[float, float, float], folder: Path
) -> Tokenizer:
    """Trains a tokenizer on the beginning of the training text, once for each source."""
    part = "train" if source.parts else None
    name = _source_hash(source, "bpe", str(vocabulary), repr(ratios))
    path = folder / f"{name}.json"
    with file_lock(folder / f"{name}.lock", f"the tokenizer of {source.path}", wait=True):
        if not path.exists():
            size = sum(len(piece.text) for piece in source.pieces(part))
            limit = TRAINED_BYTES
            if part is None:
                limit = min(limit, int(size * ratios[0] / sum(ratios)))
            remove_unfinished(path)
            trained = train_tokenizer(_first_bytes(_utf8_pieces(source, part), limit), vocabulary)
            write_text(path, trained.data)
    return make_tokenizer(JsonTokenizer.kind, path.read_text("utf-8"))


def _first_bytes(pieces: Iterable[Piece], limit: int) -> Iterator[bytes]:
    for piece in pieces:
        if limit <= 0:
            return
        is_whole = len(piece.text) <= limit
        yield piece.text if is_whole else piece.text[: _character_border(piece.text, limit)]
        limit -= len(piece.text)


def _character_border(text: bytes, place: int) -> int:
    """The last place up to ``place`` where a character of UTF-8 begins, in at most 3 bytes."""
    continuing = (place - shift for shift in range(4) if shift <= place)
    return next((start for start in continuing if text[start] & 0xC0 != 0x80), place)


def _utf8_pieces(source: TextSource, part: str | None) -> Iterator[Piece]:
    """The pieces of a source; text that is not UTF-8 is an error."""
    number = offset = 0
    for piece in source.pieces(part):
        number, offset = number + piece.begins, 0 if piece.begins else offset
        try:
            decode_utf8(piece.text, offset)
        except ValueError as error:
            place = f"document {number}: " if source.parts or is_text_table(source.path) else ""
            raise DataFormatError(f"{source.path}: {place}{error}", "tokenizer") from None
        offset += len(piece.text)
        yield piece


def split_tokens(
    tokens: Tokens, ratios: tuple[float, float, float], begin: int | None
) -> tuple[Tokens, Tokens, Tokens]:
    """Splits tokens in order by ratios; with ``begin`` at the nearest beginning of a document.

    Example:
        >>> parts = split_tokens(np.array([9, 1, 2, 9, 3, 4, 9, 5]), (1.0, 1.0, 1.0), 9)
        >>> [part.tolist() for part in parts]
        [[9, 1, 2], [9, 3, 4], [9, 5]]
    """
    cuts = np.cumsum(ratios)[:2] / sum(ratios) * len(tokens)
    first, second = (_nearest_begin(tokens, round(cut), begin) for cut in cuts.tolist())
    return tokens[:first], tokens[first:second], tokens[second:]


def _nearest_begin(tokens: Tokens, place: int, begin: int | None) -> int:
    """The place of the begin token nearest to a place; the end of the tokens if there is none.

    The first token is not chosen, and the end only if there is no other choice, because parts
    would be empty.
    """
    if begin is None:
        return place
    after, before = len(tokens), 0
    for start in range(max(place, 1), len(tokens), _PIECE):
        if (begins := np.flatnonzero(tokens[start : start + _PIECE] == begin)).size:
            after = start + int(begins[0])
            break
    for stop in range(place, 0, -_PIECE):
        start = max(stop - _PIECE, 0)
        if (begins := np.flatnonzero(tokens[start:stop] == begin)).size:
            before = start + int(begins[-1])
            break
    is_nearer = place - before < after - place or after == len(tokens)
    return before if before and is_nearer else after
