"""Tokenizers: what is encoded is decoded, whole and token by token, and damaged files are named."""

import io
import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data.texts import (
    ByteTokenizer,
    load_tokenizer,
    make_tokenizer,
    train_tokenizer,
)
from flax_linattn.data.texts import tokenizers as module

TEXT = "A line of a text, and another: été, 10 €, 😀!\n<|endoftext|> is a line, too.\n"
BYTES = ByteTokenizer()


@pytest.fixture(scope="module")
def bpe():
    return train_tokenizer([TEXT.encode()] * 3, 300)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """A SentencePiece model with bytes for unknown characters, trained on a few lines."""
    sentencepiece = pytest.importorskip("sentencepiece")
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines() * 20), model_writer=content, vocab_size=320,
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model") / "toy.model"
    path.write_bytes(content.getvalue())
    return path


@pytest.fixture(scope="module")
def pieces(model_file):
    return load_tokenizer(model_file)


@given(st.binary(max_size=60))
def test_bytes_are_their_own_tokens(text):
    tokens = BYTES.encode(text)
    assert tokens.dtype == np.int32 and tokens.tolist() == list(text)
    assert BYTES.decode(tokens) == text
    assert BYTES.decode([256, *tokens, 256]) == text


def test_training_twice_gives_the_same_tokenizer(bpe):
    again = train_tokenizer(iter([TEXT.encode()] * 3), 300)
    assert again.data == bpe.data and again.num_tokens == bpe.num_tokens <= 300
    stored = make_tokenizer("tokenizers", bpe.data)
    assert stored.encode(TEXT.encode()).tolist() == bpe.encode(TEXT.encode()).tolist()
    assert stored.begin == bpe.begin < bpe.num_tokens


def test_a_vocabulary_holds_more_than_bytes():
    assert train_tokenizer([b"abc"], 257).num_tokens == 257
    with pytest.raises(ValueError, match="vocabulary"):
        train_tokenizer([b"abc"], 256)


@given(st.text(max_size=40))
def test_any_text_comes_back(bpe, text):
    tokens = bpe.encode(text.encode())
    assert bpe.decode(tokens) == text.encode()
    assert not (tokens == bpe.begin).any() and (tokens < bpe.num_tokens).all()
    assert bpe.decode([bpe.begin, *tokens, bpe.begin]) == text.encode()


def test_a_special_token_in_a_text_is_text(bpe, pieces):
    for tokenizer, text in ((bpe, "a<|endoftext|>b"), (pieces, "a <s> </s> b")):
        tokens = tokenizer.encode(text.encode())
        assert tokenizer.begin not in tokens
        assert tokenizer.decode(tokens) == text.encode()


def test_a_published_tokenizer_that_begins_texts_itself():
    """Its own templates, truncation and padding do not apply, and its begin token is used."""
    tokenizers = pytest.importorskip("tokenizers")
    names = ["<s>", "</s>", "<unk>", "a", "b"]
    vocabulary = {name: number for number, name in enumerate(names)}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.add_special_tokens(["<s>", "</s>"])
    template = tokenizers.processors.TemplateProcessing
    own.post_processor = template("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    own.enable_truncation(3)
    own.enable_padding(length=9)
    tokenizer = make_tokenizer("tokenizers", own.to_str())
    assert tokenizer.encode(b"a b a b a").tolist() == [3, 4, 3, 4, 3]
    assert (tokenizer.begin, tokenizer.num_tokens) == (0, 5)
    assert tokenizer.decode([0, 3, 1, 4]) == b"a b"


def test_a_tokenizer_without_special_tokens_gets_one():
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a"))
    tokenizer = make_tokenizer("tokenizers", own.to_str())
    assert (tokenizer.begin, tokenizer.num_tokens) == (2, 3)
    assert tokenizer.decode([2, 1, 2]) == b"b"


def test_ids_of_a_tokenizer_may_have_gaps():
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 5}, "a"))
    tokenizer = make_tokenizer("tokenizers", own.to_str())
    assert (tokenizer.begin, tokenizer.num_tokens) == (6, 7)
    assert tokenizer.encode(b"b").tolist() == [5] and tokenizer.decode([5, 6]) == b"b"


@given(st.text(st.sampled_from("aé€😀 \n"), max_size=12))
def test_text_of_pieces_comes_back(pieces, text):
    """SentencePiece joins spaces; all else it keeps, by bytes where it has no piece."""
    joined = " ".join(text.split())
    assert pieces.decode(pieces.encode(joined.encode())).decode() == joined


def stream(tokenizer, tokens):
    parts = list(tokenizer.decode_stream(iter(tokens)))
    assert all(parts)
    return "".join(parts)


def whole(tokenizer, tokens):
    return tokenizer.decode(tokens).decode(errors="replace")


MULTIBYTE = st.text(st.sampled_from("abé€😀\n \ufffd"), max_size=20)


@given(MULTIBYTE)
def test_a_stream_of_tokens_gives_the_whole_text(bpe, pieces, text):
    for tokenizer in (BYTES, bpe):
        assert stream(tokenizer, tokenizer.encode(text.encode())) == text
    tokens = pieces.encode(text.encode())
    assert stream(pieces, tokens) == whole(pieces, tokens)


@given(st.lists(st.sampled_from([*"aé€😀".encode(), 0xFF, 0xC0, 0xED, 256]), max_size=40))
def test_a_stream_of_any_bytes_gives_the_whole_text(bpe, tokens):
    """As of an untrained model: characters that are cut, and bytes that are no character."""
    assert stream(BYTES, tokens) == whole(BYTES, tokens)
    chosen = [(7 * token) % bpe.num_tokens for token in tokens]
    assert stream(bpe, chosen) == whole(bpe, chosen)


def test_a_character_comes_with_its_last_byte():
    given = []
    parts = BYTES.decode_stream(given.append(byte) or byte for byte in "é€😀a".encode())
    assert [(part, len(given)) for part in parts] == [("é", 2), ("€", 5), ("😀", 9), ("a", 10)]


def test_a_stream_without_characters_keeps_few_tokens(monkeypatch):
    sizes, decode = [], ByteTokenizer.decode
    monkeypatch.setattr(
        ByteTokenizer, "decode", lambda *args: sizes.append(len(args[1])) or decode(*args)
    )
    assert stream(BYTES, [0xFF] * 2000) == "�" * 2000
    assert max(sizes) <= 2 * module.MAX_HELD_TOKENS + 2


def test_text_that_is_not_utf8_is_refused(bpe, pieces):
    for tokenizer in (bpe, pieces):
        with pytest.raises(ValueError, match="the byte 0xff at byte 2 of the text; convert"):
            tokenizer.encode(b"ab\xffc")


DAMAGED = {
    "empty": b"",
    "json": b"{}",
    "cut": b'{"version": "1.0", "truncation": nu',
    "list": b"[1, 2]",
    "binary": bytes(range(200)),
    "text": b"a text\n",
    "latin": b'{"a": "\xe9"}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_no_tokenizer(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(OptionError) as caught:
        load_tokenizer(path)
    message = str(caught.value)
    assert f"or a SentencePiece model, in {path}, got neither (" in message
    assert "\n" not in message and len(message) < 300 + len(str(path))
    assert caught.value.options == ("tokenizer",)


def test_other_files_that_are_no_tokenizer(bpe, model_file, tmp_path, monkeypatch):
    for path, found in ((tmp_path / "gone.json", "nothing"), (tmp_path, "a folder")):
        with pytest.raises(FileNotFoundError, match=f"found {found} there; pass a tokenizer.json"):
            load_tokenizer(path)
    path = tmp_path / "model"
    path.write_bytes(model_file.read_bytes()[:-100])
    with pytest.raises(OptionError, match="got neither"):
        load_tokenizer(path)
    path.write_text(bpe.data)
    assert load_tokenizer(path).data == bpe.data
    monkeypatch.setattr(module, "MAX_TOKENIZER_BYTES", 1000)
    with pytest.raises(OptionError, match="at most 1,000 bytes, got"):
        load_tokenizer(path)


def test_packages_that_are_missing_are_named(bpe, model_file, monkeypatch):
    for name, use in {
        "tokenizers": lambda: make_tokenizer("tokenizers", bpe.data + " "),
        "sentencepiece": lambda: load_tokenizer(model_file),
    }.items():
        make_tokenizer.cache_clear()
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(OptionError, match=r"pip install 'flax-linattn\[text\]'"):
            use()


def test_the_data_of_a_tokenizer_are_text(bpe, pieces):
    for tokenizer in (BYTES, bpe, pieces):
        json.dumps(tokenizer.data).encode("ascii")
        again = make_tokenizer(tokenizer.kind, tokenizer.data)
        assert (again.num_tokens, again.begin) == (tokenizer.num_tokens, tokenizer.begin)
