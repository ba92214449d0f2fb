"""Tokenizers: bytes, Hugging Face ``tokenizers`` files and SentencePiece models."""

from __future__ import annotations

import abc
import base64
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers, import_extra, quote
from flax_linattn.data.errors import DataFormatError, report_damage

END_OF_TEXT = "<|endoftext|>"
"""Special token that begins each document."""
_BEGINS = (END_OF_TEXT, "<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "</s>", "[CLS]")
"""Special tokens of published tokenizers that may begin a document."""
_MISSING = "tokenizers other than bytes need a package: pip install 'flax-linattn[text]'"
MAX_TOKENIZER_BYTES = 2**24
"""Maximum size of a tokenizer file, which becomes a part of the data spec of a run."""
MAX_HELD_TOKENS = 256
"""Maximum number of tokens without a complete character that ``decode_stream`` waits for."""


class Tokenizer(abc.ABC):
    """Converts text, as UTF-8 bytes, to tokens and back.

    Attributes:
        kind: Name of the class in the data spec of a run.
        num_tokens: Number of different tokens, including special tokens.
        begin: Token that begins each document.
        data: The tokenizer as text, from which ``make_tokenizer`` makes it again.
    """

    kind: ClassVar[str]
    num_tokens: int
    begin: int
    data: str

    @abc.abstractmethod
    def encode(self, text: bytes) -> NDArray[np.int32]:
        """Converts a text to tokens, int32 ``[T]``, without special tokens.

        Raises:
            ValueError: If the tokenizer needs UTF-8, and the text is not UTF-8.
        """

    @abc.abstractmethod
    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> bytes:
        """Converts tokens to text; special tokens become nothing."""

    def decode_stream(self, tokens: Iterable[int]) -> Iterator[str]:
        r"""Decodes tokens as they arrive: yields the text of each token that completes characters.

        It keeps the last few tokens only. Bytes that are not UTF-8 become U+FFFD. The yielded texts
        together are the text of all tokens, unless more than ``MAX_HELD_TOKENS`` tokens in a row
        complete no character.

        Example:
            >>> list(ByteTokenizer().decode_stream("né!".encode() + b"\xff\n"))
            ['n', 'é', '!', '�\n']
        """
        window: list[int] = []
        text, num_context, num_yielded = "", 0, 0  # tokens before the last text, and characters
        for token in tokens:
            window.append(int(token))
            text = self.decode(window).decode(errors="replace")
            # The last 3 characters may be the first bytes of one character.
            num_held = min(len(text) - len(text.rstrip("�")), 3)
            end = len(text) - (num_held if len(window) <= MAX_HELD_TOKENS else 0)
            if end > num_yielded:
                yield text[num_yielded:end]
                num_yielded = end
                if end == len(text):
                    # The text of a token depends on the token before it: a space, or none.
                    window, num_context = window[num_context:], len(window) - num_context
                    text = self.decode(window).decode(errors="replace")
                    num_yielded = len(text)
        if rest := text[num_yielded:]:
            yield rest


class ByteTokenizer(Tokenizer):
    r"""Bytes as tokens 0 to 255; token 256 begins a document.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("aé".encode()).tolist(), tokenizer.decode([256, 97, 195, 169])
        ([97, 195, 169], b'a\xc3\xa9')
    """

    kind = "bytes"
    num_tokens = 257
    begin = 256
    data = ""

    def encode(self, text: bytes) -> NDArray[np.int32]:
        return np.frombuffer(text, np.uint8).astype(np.int32)

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> bytes:
        array = np.asarray(tokens, np.int64)
        return array[array < 256].astype(np.uint8).tobytes()


class _VocabularyTokenizer(Tokenizer):
    """Base class of tokenizers with a vocabulary, which may lack a token that begins documents."""

    def _set_vocabulary(self, size: int, begins: Iterable[int | None]) -> None:
        """Sets the number of tokens, and the first known token of ``begins``, or else a new one."""
        known = [token for token in begins if token is not None]
        self._num_known = size
        self.begin = known[0] if known else size
        self.num_tokens = size if known else size + 1

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> bytes:
        ids = [int(token) for token in tokens if token != self.begin and token < self._num_known]
        return self._decode_ids(ids).encode()

    @abc.abstractmethod
    def _decode_ids(self, ids: list[int]) -> str:
        """Converts tokens of the vocabulary to text."""


class JsonTokenizer(_VocabularyTokenizer):
    """A tokenizer of the Hugging Face ``tokenizers`` library, from the text of its JSON file.

    Special tokens in a text are encoded as plain text, so that a text cannot begin a new document.

    Args:
        data: Text of a ``tokenizer.json``.

    Raises:
        ValueError: If the text is not a tokenizer.
    """

    kind = "tokenizers"

    def __init__(self, data: str) -> None:
        tokenizers = import_extra("tokenizers", _MISSING, "tokenizer")
        self.data = data
        with report_damage("the tokenizer", "a tokenizer.json of the tokenizers library"):
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(data)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Not the size of the vocabulary: its ids may have gaps.
        size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._set_vocabulary(size, map(self._tokenizer.token_to_id, _BEGINS))

    def encode(self, text: bytes) -> NDArray[np.int32]:
        ids = self._tokenizer.encode(decode_utf8(text), add_special_tokens=False).ids
        return np.asarray(ids, np.int32)

    def _decode_ids(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


class SentencePieceTokenizer(_VocabularyTokenizer):
    """A tokenizer of a SentencePiece model.

    Args:
        data: The model file in base64.

    Raises:
        ValueError: If the data are not a model.
    """

    kind = "sentencepiece"

    def __init__(self, data: str) -> None:
        sentencepiece = import_extra("sentencepiece", _MISSING, "tokenizer")
        self.data = data
        with report_damage("the tokenizer", "a SentencePiece model"):
            self._processor: Any = sentencepiece.SentencePieceProcessor()
            self._processor.LoadFromSerializedProto(base64.b64decode(data, validate=True))
        begins = self._processor.bos_id(), self._processor.eos_id()
        known = (token for token in begins if token >= 0)
        self._set_vocabulary(self._processor.vocab_size(), known)

    def encode(self, text: bytes) -> NDArray[np.int32]:
        return np.asarray(self._processor.EncodeAsIds(decode_utf8(text)), np.int32)

    def _decode_ids(self, ids: list[int]) -> str:
        text: str = self._processor.DecodeIds(ids)
        return text


_KINDS = {kind.kind: kind for kind in (JsonTokenizer, SentencePieceTokenizer)}
KINDS = (ByteTokenizer.kind, *_KINDS)
"""Names of the kinds of tokenizers."""


@functools.lru_cache(4)
def make_tokenizer(kind: str, data: str = "") -> Tokenizer:
    """Makes a tokenizer of a kind from its ``data``."""
    return ByteTokenizer() if kind == ByteTokenizer.kind else _KINDS[kind](data)


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads a ``tokenizer.json`` of the tokenizers library, or a SentencePiece model.

    Raises:
        FileNotFoundError: If there is no such file.
        OptionError: If the file is not a tokenizer, or its package is not installed.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a tokenizer at {path}, found {'a folder' if path.is_dir() else 'nothing'} "
            "there; pass a tokenizer.json or a SentencePiece model."
        )
    if (size := path.stat().st_size) > MAX_TOKENIZER_BYTES:
        raise OptionError(
            f"expected a tokenizer of at most {MAX_TOKENIZER_BYTES:,} bytes, got {size:,} in "
            f"{path}.",
            "tokenizer",
        )
    content = path.read_bytes()
    is_json = content.lstrip().startswith(b"{")
    kind = JsonTokenizer.kind if is_json else SentencePieceTokenizer.kind
    try:
        data = content.decode() if is_json else base64.b64encode(content).decode()
        return make_tokenizer(kind, data)
    except (DataFormatError, UnicodeDecodeError) as error:
        raise OptionError(
            f"expected a tokenizer.json of the tokenizers library, or a SentencePiece model, in "
            f"{path}, got neither ({quote(error.__cause__ or error, 100)}).",
            "tokenizer",
        ) from error


def train_tokenizer(texts: Iterable[bytes], vocabulary: int) -> Tokenizer:
    """Trains a byte-level BPE tokenizer (as GPT-2's), whose decoding gives the same bytes again.

    Args:
        texts: Texts in UTF-8.
        vocabulary: Number of tokens, at least 257: the bytes and the token between documents.
    """
    check_integers(257, 2**20, vocabulary=vocabulary)
    tokenizers = import_extra("tokenizers", _MISSING, "vocabulary")
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(map(decode_utf8, texts), trainer)
    return make_tokenizer(JsonTokenizer.kind, model.to_str())


def decode_utf8(text: bytes, offset: int = 0) -> str:
    """Decodes UTF-8; an error states the position of the invalid byte, plus ``offset``."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"expected UTF-8, which tokenizers need, got the byte 0x{text[error.start]:02x} at "
            f"byte {offset + error.start:,} of the text; convert the file to UTF-8, or use bytes "
            "as tokens"
        ) from None
