"""Sequences of tokens: generated ones, bytes of texts, grey pixels of images."""

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
from flax_linattn.checks import OptionError, at_least, choice, quote
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.generators.listops import (
    LISTOPS_TOKENS,
    GrownListOps,
    SampledListOps,
    parse_listops,
    read_listops,
)
from flax_linattn.data.generators.pathfinder import Pathfinder
from flax_linattn.data.images import LabelledImages
from flax_linattn.data.images.decode import is_image
from flax_linattn.data.texts import (
    LabelledTexts,
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
    DRAWN,
    FETCHED,
    LENGTH_OPTIONS,
    SequenceConfig,
    SequenceData,
)
from flax_linattn.tasks.files import checksum

MAX_SEQUENCE_LENGTH = 2**24
"""Tokens of a sequence."""
NUM_LENGTHS = 4
"""Lengths that batches are padded to, each a program to compile."""
MIN_BUCKETED_LENGTH = 512
"""Bytes of a text from which padding costs more than compiling a model for several lengths."""

ListOps: TypeAlias = GrownListOps | SampledListOps


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """The tokens of a kind of sequence, and their spelling in the lines of a stream.

    Attributes:
        name: by which a run remembers it.
        num_tokens: number of different tokens.
        read: the tokens of a line that is not blank.
        between: tokens between two lines of one sequence.
        comments: whether there are comment lines, see ``data.tables.cells.is_comment``.
    """

    name: str
    num_tokens: int
    read: Callable[[str], Iterable[int]]
    between: tuple[int, ...] = ()
    comments: bool = True

    def parse(self, lines: Iterable[str]) -> Iterator[int | None]:
        """Reads tokens; None where a blank line begins a new sequence.

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
    # What was not UTF-8 came as a backslash escape, see open_lines.
    return line.encode("utf-8", "surrogateescape")


def _read_grey(line: str) -> Iterator[int]:
    for text in line.replace(",", " ").split():
        if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) < 256):
            raise ValueError(
                f"expected grey values, whole numbers from 0 to 255, got {quote(text)}."
            )
        yield int(text)


ALPHABETS = {
    alphabet.name: alphabet
    for alphabet in (
        Alphabet("listops", len(LISTOPS_TOKENS), lambda line: parse_listops(line).tolist()),
        Alphabet("bytes", 256, _read_bytes, (ord("\n"),), comments=False),
        Alphabet("grey", 256, _read_grey),
    )
}
"""By name."""


@dataclasses.dataclass(frozen=True)
class SequenceSpec(LabelSpec):
    """What the data say; kept in the run folder.

    Attributes:
        dataset: its name.
        letters: the name of the tokens' alphabet.
        classes: names of the classes, in the order of the logits.
        max_length: tokens of the longest sequence, of those to test at further lengths, too.
        checksum: of the data.
    """

    dataset: str
    letters: str
    classes: tuple[str, ...]
    max_length: int
    checksum: str
    free_fields: ClassVar[tuple[str, ...]] = ("dataset", "max_length", "checksum")

    def continue_from(self, previous: Self, *, refit_scales: bool = False) -> Self:
        """With sequences as long as before, which the model takes."""
        spec = super().continue_from(previous, refit_scales=refit_scales)
        longest = max(self.max_length, previous.max_length)
        return dataclasses.replace(spec, max_length=longest)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The shape of one token of a stream."""
        return jax.ShapeDtypeStruct((1,), jnp.int32)

    @property
    def alphabet(self) -> Alphabet:
        """What the tokens stand for."""
        return ALPHABETS[self.letters]

    @property
    def kind(self) -> str:
        """The alphabet and the classes."""
        return f"{self.letters} of the classes {', '.join(self.classes)}"

    def check(self) -> None:
        """Checks the types, sizes and names of the fields."""
        super().check()
        choice(ALPHABETS, letters=self.letters)
        at_least(1, MAX_SEQUENCE_LENGTH, max_length=self.max_length)


class TokenSource(Source[SequenceConfig, SequenceSpec]):
    """Sequences of tokens with their classes, and the tokens of the longest one.

    Batches have "tokens", int32 [B, T] (of pixels uint8), "mask", bool [B, T], where lengths
    differ, and "labels", int32 [B].
    """

    alphabet: Alphabet
    max_length: int

    def describe(self, config: SequenceConfig) -> SequenceSpec:
        """Describes the names, lengths and checksum of the data."""
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
    """The source that options name, for runs that are trained at once."""
    if options.data in DRAWN:
        return GeneratedTokens(options, num_runs)
    path = options.path
    if not path.exists():
        if path.name in FETCHED.values() and path.parent.name == "data":
            name = path.name
            raise FileNotFoundError(
                f"expected the files of {name} in the folder {path}, found nothing there; fetch "
                f"them first (flax-linattn data fetch {name}), or give the path of your own."
            )
        known = {name.lower(): name for name in (*DRAWN, *FETCHED)}
        near = difflib.get_close_matches(path.name.lower(), known, 1)
        if near and not path.suffix:  # a slip in a name, rather than a path
            raise OptionError(
                f"expected a folder or an archive of data at {path}, found none; did you mean "
                f"{known[near[0]]!r}?",
                "data",
            )
        raise FileNotFoundError(f"expected a folder or an archive of data at {path}, found none.")
    return TextTokens(options) if _holds_texts(data_path(path)) else PixelTokens(options)


def _holds_texts(path: Path) -> bool:
    """Whether texts lie below a folder named train, and no images."""
    train = [n for n in FileTree(path).sizes if "train" in n.lower().split("/")[:-1]]
    return any(n.lower().endswith(".txt") for n in train) and not any(map(is_image, train))


class GeneratedTokens(TokenSource):
    """ListOps, whose classes are the values, or Pathfinder, whose classes are no and yes."""

    def __init__(self, options: SequenceData, num_runs: int = 1) -> None:
        self.name = options.data
        self._options = options
        # Runs that are trained at once take batches of one length: seeds draw lengths of their own.
        self._num_lengths = 1 if num_runs > 1 else NUM_LENGTHS
        task = self._task(1)
        if isinstance(task, Pathfinder):
            self.alphabet, self.classes = ALPHABETS["grey"], PATHFINDER_CLASSES
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
        """Training never sees an example twice; validation and test are always the same."""
        least, most = self._options.min_length, self._options.max_length
        step = -(-most // self._num_lengths)
        multiple = (
            -(-step // sequence_shards) * sequence_shards if most > least else sequence_shards
        )
        task = self._task(multiple)
        if not isinstance(task, GrownListOps) and self.max_length % sequence_shards:
            raise ValueError(
                f"sequences of {self.max_length} tokens do not go over {sequence_shards} devices; "
                "choose a length that is a multiple, or leave seq out of the mesh."
            )
        return generated_splits(task, config)

    def at_length(self, config: SequenceConfig, length: int) -> training.BatchSource:
        """ListOps of exactly this length, as many as there are to test on."""
        # A stream of its own for each length; the first three are those of ``splits``.
        task, size = GrownListOps(length, length), config.data.test_size
        return generated_batches(task, config, size, stream=3 + length)

    def checksum(self, config: SequenceConfig) -> str:
        """Checksum of the first batch of each part."""
        return generated_checksum(self.splits(config))

    def about(self, config: SequenceConfig) -> str:
        what = f"{self._lengths} tokens, {len(self.classes)} classes"
        return describe_generated(self.name, config.data, what)


class PixelTokens(TreeSource[SequenceConfig, SequenceSpec, LabelledImages], TokenSource):
    """Images of any official format, row by row; a pixel's grey value is a token."""

    alphabet = ALPHABETS["grey"]

    def __init__(self, options: SequenceData) -> None:
        train, test = (part.grey() for part in read_images(options.path, options.image_size))
        options.refuse(LENGTH_OPTIONS, "images", "data")
        super().__init__(options.data_name, train, test, options, images_checksum(train, test))
        height, width, _ = train.image_shape
        self.max_length = height * width

    def part_batches(
        self,
        part: LabelledImages,
        config: SequenceConfig,
        data_spec: SequenceSpec,
        sequence_shards: int,
        *,
        training: bool,
    ) -> data.Batches:
        """All pixels of each image."""
        if self.max_length % sequence_shards:
            raise ValueError(
                f"{self.max_length:,} pixels do not go over {sequence_shards} devices; bring the "
                "images to a size that does, or leave seq out of the mesh."
            )
        arrays: dict[str, NDArray] = {"tokens": part.pixels_as_tokens(), "labels": part.labels}
        seed = config.seed if training else None
        return data.Batches(arrays, config.fit.batch_size, seed=seed)

    def about(self, config: SequenceConfig) -> str:
        height, width, _ = self.test.image_shape
        return (
            f"{self.name}: images of {height} x {width} grey pixels, {self.counts()}\n"
            f"{about_classes(self.classes)}"
        )


class TextTokens(TreeSource[SequenceConfig, SequenceSpec, LabelledTexts], TokenSource):
    """Texts in folders of their classes, such as aclImdb's; a byte is a token."""

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
        part: LabelledTexts,
        config: SequenceConfig,
        data_spec: SequenceSpec,
        sequence_shards: int,
        *,
        training: bool,
    ) -> TextBatches | PackedTextBatches:
        """Texts cut to the longest length; those to train on perhaps cropped, or packed."""
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
        self, texts: LabelledTexts, config: SequenceConfig, sequence_shards: int
    ) -> tuple[int, ...] | None:
        """Lengths that long texts are padded to; None for one."""
        most = config.data.max_length
        if most < MIN_BUCKETED_LENGTH or config.data.padding == "symbol":
            return None
        lengths = np.minimum(texts.lengths, most)
        shares = np.quantile(lengths, np.linspace(0, 1, NUM_LENGTHS + 1)[1:])
        return tuple(
            sorted(
                {-(-int(np.ceil(share)) // sequence_shards) * sequence_shards for share in shares}
            )
        )

    def about(self, config: SequenceConfig) -> str:
        longest = max(part.lengths.max() for part in (self.fitted, self.validation, self.test))
        return (
            f"{self.name}: {self.counts(' texts')}, of up to {longest:,} bytes, of which "
            f"{self.max_length:,} are seen\n"
            f"{about_classes(self.classes)}"
        )


def expression_batches(path: Path, config: SequenceConfig, data_spec: SequenceSpec) -> TextBatches:
    """Batches of the ListOps expressions of a file, to test on."""
    expressions = read_listops(path)
    texts = tuple(tokens.astype(np.uint8).tobytes() for tokens in expressions.tokens)
    labeled = LabelledTexts(str(path), data_spec.classes, expressions.labels, texts)
    longest = int(labeled.lengths.max())
    if config.model.position == "learned" and longest > data_spec.max_length:
        raise ValueError(
            f"{path} has an expression of {longest:,} tokens, and the run's model positions for "
            f"{data_spec.max_length:,}; give shorter ones, or train with sinusoidal positions."
        )
    quantiles = np.quantile(labeled.lengths, np.linspace(0, 1, NUM_LENGTHS + 1)[1:])
    lengths = np.ceil(quantiles).astype(int).tolist()
    return TextBatches(
        labeled, config.fit.batch_size, max_length=longest, seed=None, lengths=lengths
    )
