"""Token sequences: synthetic data, bytes of texts, gray pixels of images."""

from __future__ import annotations

import abc
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, training
from flax_linattn.checks import OptionError, check_choice, check_integers, quote
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.generators.listops import (
    LISTOPS_TOKENS,
    GrownListOps,
    SampledListOps,
    parse_listops,
    read_listops,
)
from flax_linattn.data.generators.pathfinder import Pathfinder
from flax_linattn.data.images import LabeledImages
from flax_linattn.data.images.decode import is_image
from flax_linattn.data.texts import (
    LabeledTexts,
    PackedTextBatches,
    TextBatches,
    load_texts,
    taylorshift_bytes,
)
from flax_linattn.tasks.classify.sources import (
    PATHFINDER_CLASSES,
    PATHFINDER_SIZE,
    LabelSpec,
    Source,
    TreeSource,
    about_classes,
    check_classes,
    data_path,
    describe_generated,
    generated_batches,
    generated_checksum,
    generated_splits,
    images_checksum,
    read_images,
)
from flax_linattn.tasks.classify.tokens.options import (
    FETCHED,
    GENERATED,
    LENGTH_OPTIONS,
    SequenceConfig,
    SequenceData,
)
from flax_linattn.tasks.files import checksum

MAX_SEQUENCE_LENGTH = 2**24
"""Maximum number of tokens of a sequence."""
NUM_LENGTHS = 4
"""Number of lengths that batches are padded to; each needs a compilation."""
MIN_BUCKETED_LENGTH = 512
"""Maximum text length from which several padded lengths are worth their compilations."""

ListOps: TypeAlias = GrownListOps | SampledListOps


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """The tokens of a kind of sequence, and their text form in the lines of a stream.

    Attributes:
        name: Name in the data spec of a run.
        num_tokens: Number of different tokens.
        read: Function that parses a nonblank line to tokens.
        between: Tokens between two lines of one sequence.
        comments: Whether lines may be comments, see ``data.tables.cells.is_comment``.
    """

    name: str
    num_tokens: int
    read: Callable[[str], Iterable[int]]
    between: tuple[int, ...] = ()
    comments: bool = True

    def parse(self, lines: Iterable[str]) -> Iterator[int | None]:
        """Parses tokens; yields None where a blank line begins a new sequence.

        Example:
            >>> list(ALPHABETS["listops"].parse(["[MAX 2", "9 ]", "", "7"]))
            [11, 2, 9, 16, None, 7]
        """
        inside = False
        for line in lines:
            if not line.strip():
                inside = False
                yield None
                continue
            if inside:
                yield from self.between
            inside = True
            yield from self.read(line)


def _read_bytes(line: str) -> bytes:
    return line.encode("utf-8", "surrogateescape")


def _read_gray(line: str) -> Iterator[int]:
    for text in line.replace(",", " ").split():
        if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) < 256):
            raise ValueError(f"expected gray values, integers from 0 to 255, got {quote(text)}.")
        yield int(text)


ALPHABETS = {
    alphabet.name: alphabet
    for alphabet in (
        Alphabet("listops", len(LISTOPS_TOKENS), lambda line: parse_listops(line).tolist()),
        Alphabet("bytes", 256, _read_bytes, (ord("\n"),), comments=False),
        Alphabet("gray", 256, _read_gray),
    )
}
"""Alphabets by name."""


@dataclasses.dataclass(frozen=True)
class SequenceSpec(LabelSpec):
    """Metadata of the data, saved in the run folder.

    Attributes:
        dataset: Name of the data set.
        letters: Name of the alphabet of the tokens.
        classes: Names of the classes, in the order of the logits.
        max_length: Number of tokens of the longest sequence, including further test lengths.
        checksum: Checksum of the data.
    """

    dataset: str
    letters: str
    classes: tuple[str, ...]
    max_length: int
    checksum: str
    free_fields: ClassVar[tuple[str, ...]] = ("dataset", "max_length", "checksum")

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """Makes the spec for a continued run, whose maximum length does not decrease."""
        spec = super().continue_from(previous, refit_scales=refit_scales)
        longest = max(self.max_length, previous.max_length)
        return dataclasses.replace(spec, max_length=longest)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one token of a stream."""
        return jax.ShapeDtypeStruct((1,), jnp.int32)

    @property
    def alphabet(self) -> Alphabet:
        """The alphabet of the tokens."""
        return ALPHABETS[self.letters]

    @property
    def kind(self) -> str:
        """The alphabet and the classes, in words."""
        return f"{self.letters} of the classes {', '.join(self.classes)}"

    def check(self) -> None:
        """Checks the types, sizes and names of the fields."""
        super().check()
        check_choice(ALPHABETS, letters=self.letters)
        check_integers(1, MAX_SEQUENCE_LENGTH, max_length=self.max_length)


class TokenSource(Source[SequenceConfig, SequenceSpec]):
    """Source of labeled token sequences, with their alphabet and maximum length.

    Batches have "tokens", int32 [B, T] (uint8 for pixels), "labels", int32 [B], and, if lengths
    differ, "mask", bool [B, T].
    """

    alphabet: Alphabet
    max_length: int

    def describe(self, config: SequenceConfig) -> SequenceSpec:
        """Makes the data spec: names, maximum length and checksum."""
        return SequenceSpec(
            dataset=self.name,
            letters=self.alphabet.name,
            classes=self.classes,
            max_length=self.max_length,
            checksum=self.checksum(config),
        )

    @abc.abstractmethod
    def checksum(self, config: SequenceConfig) -> str:
        """Computes a checksum of the data."""


def open_source(options: SequenceData, num_runs: int) -> TokenSource:
    """Opens the data that options name, for ``num_runs`` runs trained together."""
    if options.data in GENERATED:
        return GeneratedTokens(options, num_runs)
    path = options.path
    if not path.exists():
        if path.name in FETCHED.values() and path.parent.name == "data":
            name = path.name
            raise FileNotFoundError(
                f"expected the files of {name} in the folder {path}, which does not exist; fetch "
                f"them first (flax-linattn data fetch {name}), or pass another path."
            )
        known = {name.lower(): name for name in (*GENERATED, *FETCHED)}
        near = difflib.get_close_matches(path.name.lower(), known, 1)
        if near and not path.suffix:  # a misspelled name rather than a path
            raise OptionError(
                f"the data folder or archive {path} does not exist; did you mean "
                f"{known[near[0]]!r}?",
                "data",
            )
        raise FileNotFoundError(f"the data folder or archive {path} does not exist.")
    return TextTokens(options) if _holds_texts(data_path(path)) else PixelTokens(options)


def _holds_texts(path: Path) -> bool:
    """Whether the training folder has texts and no images."""
    train = [n for n in FileTree(path).sizes if "train" in n.lower().split("/")[:-1]]
    return any(n.lower().endswith(".txt") for n in train) and not any(map(is_image, train))


class GeneratedTokens(TokenSource):
    """Synthetic ListOps, whose classes are the values, or synthetic Pathfinder images."""

    def __init__(self, options: SequenceData, num_runs: int = 1) -> None:
        self.name = options.data
        self._options = options
        # Runs that train together need batches of one length, but sample lengths by their seeds.
        self._num_lengths = 1 if num_runs > 1 else NUM_LENGTHS
        task = self._task(1)
        if isinstance(task, Pathfinder):
            self.alphabet, self.classes = ALPHABETS["gray"], PATHFINDER_CLASSES
            self.max_length = task.size**2
            self._lengths = str(task.size**2)
        else:
            self.alphabet = ALPHABETS["listops"]
            self.classes = tuple(map(str, range(task.num_classes)))
            self.max_length = max(task.max_length, *options.test_lengths, 1)
            self._lengths = f"{task.min_length} to {task.max_length}"

    def _task(self, multiple_of: int) -> ListOps | Pathfinder:
        options = self._options
        lengths = (options.min_length, options.max_length)
        if options.data == "pathfinder":
            return Pathfinder(options.image_size or PATHFINDER_SIZE)
        if options.data == "listops-lra":
            return SampledListOps(*lengths)
        return GrownListOps(*lengths, multiple_of=multiple_of)

    def splits(
        self,
        config: SequenceConfig,
        data_spec: SequenceSpec | None = None,
        sequence_shards: int = 1,
    ) -> training.Splits:
        """Makes batches: training examples are always new, others are always the same."""
        min_length, max_length = self._options.min_length, self._options.max_length
        multiple = sequence_shards
        if max_length > min_length:
            multiple *= -(-max_length // (self._num_lengths * sequence_shards))
        task = self._task(multiple)
        if not isinstance(task, GrownListOps) and self.max_length % sequence_shards:
            raise ValueError(
                f"sequences of {self.max_length} tokens cannot be split over {sequence_shards} "
                "devices; choose a multiple of that number, or remove seq from the mesh."
            )
        return generated_splits(task, config)

    def at_length(self, config: SequenceConfig, length: int) -> training.BatchSource:
        """Makes ``test_size`` ListOps expressions of exactly this length."""
        # Each length has its own random stream; ``splits`` uses streams 0 to 2.
        task, size = GrownListOps(length, length), config.data.test_size
        return generated_batches(task, config, size, stream=3 + length)

    def checksum(self, config: SequenceConfig) -> str:
        """Checksum of the first batch of each split."""
        return generated_checksum(self.splits(config))

    def about(self, config: SequenceConfig) -> str:
        what = f"{self._lengths} tokens, {len(self.classes)} classes"
        return describe_generated(self.name, config.data, what)


class PixelTokens(TreeSource[SequenceConfig, SequenceSpec, LabeledImages], TokenSource):
    """Images as sequences of pixels, row by row; a gray value is a token."""

    alphabet = ALPHABETS["gray"]

    def __init__(self, options: SequenceData) -> None:
        train, test = (part.gray() for part in read_images(options.path, options.image_size))
        options.refuse(LENGTH_OPTIONS, "images", "data")
        super().__init__(options.data_name, train, test, options, images_checksum(train, test))
        height, width, _ = train.image_shape
        self.max_length = height * width

    def part_batches(
        self,
        part: LabeledImages,
        config: SequenceConfig,
        data_spec: SequenceSpec,
        sequence_shards: int,
        *,
        training: bool,
    ) -> data.Batches:
        """Makes batches of all pixels of each image."""
        if self.max_length % sequence_shards:
            raise ValueError(
                f"{self.max_length:,} pixels cannot be split over {sequence_shards} devices; "
                "resize the images to a multiple, or remove seq from the mesh."
            )
        arrays: dict[str, NDArray] = {"tokens": part.pixels_as_tokens(), "labels": part.labels}
        seed = config.seed if training else None
        return data.Batches(arrays, config.fit.batch_size, seed=seed)

    def about(self, config: SequenceConfig) -> str:
        height, width, _ = self.test.image_shape
        return (
            f"{self.name}: images of {height} x {width} gray pixels, {self.counts()}\n"
            f"{about_classes(self.classes)}"
        )


class TextTokens(TreeSource[SequenceConfig, SequenceSpec, LabeledTexts], TokenSource):
    """Texts in one folder per class, such as aclImdb; a byte is a token."""

    alphabet = ALPHABETS["bytes"]

    def __init__(self, options: SequenceData) -> None:
        train, test = load_texts(data_path(options.path))
        if options.as_python:
            train, test = (part.map(taylorshift_bytes) for part in (train, test))
        check_classes(options.path, train.classes)
        content: list[NDArray] = []
        for part in (train, test):
            content += [part.labels, *(np.frombuffer(text, np.uint8) for text in part.texts)]
        super().__init__(options.data_name, train, test, options, checksum(content))
        self.max_length = options.max_length

    def part_batches(
        self,
        part: LabeledTexts,
        config: SequenceConfig,
        data_spec: SequenceSpec,
        sequence_shards: int,
        *,
        training: bool,
    ) -> TextBatches | PackedTextBatches:
        """Makes batches of texts cut to the maximum length; training texts may be packed."""
        options, rows = config.data, config.fit.batch_size
        length = -(-options.max_length // sequence_shards) * sequence_shards
        if training and options.padding == "packed":
            return PackedTextBatches(part, rows, length, seed=config.seed)
        return TextBatches(
            part,
            rows,
            max_length=length,
            seed=config.seed if training else None,
            crop=options.crop if training else "prefix",
            padding="symbol" if options.padding == "symbol" else "masked",
            lengths=self._lengths(part, config, sequence_shards),
        )

    def _lengths(
        self, texts: LabeledTexts, config: SequenceConfig, sequence_shards: int
    ) -> tuple[int, ...] | None:
        """Lengths that long texts are padded to; None pads to the maximum length alone."""
        max_length = config.data.max_length
        if max_length < MIN_BUCKETED_LENGTH or config.data.padding == "symbol":
            return None
        lengths = np.minimum(texts.lengths, max_length)
        quantiles = np.quantile(lengths, np.linspace(0, 1, NUM_LENGTHS + 1)[1:])
        shards = -(-np.ceil(quantiles).astype(int) // sequence_shards)
        return tuple(np.unique(shards * sequence_shards).tolist())

    def about(self, config: SequenceConfig) -> str:
        longest = max(part.lengths.max() for part in (self.fitted, self.validation, self.test))
        return (
            f"{self.name}: {self.counts(' texts')}, of up to {longest:,} bytes, cut to "
            f"{self.max_length:,}\n"
            f"{about_classes(self.classes)}"
        )


def expression_batches(path: Path, config: SequenceConfig, data_spec: SequenceSpec) -> TextBatches:
    """Makes test batches of the ListOps expressions of a file."""
    expressions = read_listops(path)
    texts = tuple(tokens.astype(np.uint8).tobytes() for tokens in expressions.tokens)
    labeled = LabeledTexts(str(path), data_spec.classes, expressions.labels, texts)
    longest = int(labeled.lengths.max())
    if config.model.position == "learned" and longest > data_spec.max_length:
        raise ValueError(
            f"{path} has an expression of {longest:,} tokens, but the model has positions for "
            f"{data_spec.max_length:,}; pass shorter ones, or train with position='sinusoidal'."
        )
    quantiles = np.quantile(labeled.lengths, np.linspace(0, 1, NUM_LENGTHS + 1)[1:])
    lengths = np.ceil(quantiles).astype(int).tolist()
    return TextBatches(
        labeled, config.fit.batch_size, max_length=longest, seed=None, lengths=lengths
    )
