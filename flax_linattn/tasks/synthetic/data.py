"""Generators of synthetic sequences, and the data spec of a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from flax_linattn import data, training
from flax_linattn.checks import OptionError, check_choice, check_integers
from flax_linattn.data.generators.nt import RULES
from flax_linattn.data.generators.recall import QueriedSequences
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.spec import DataSpec
from flax_linattn.tasks.synthetic.options import RECALL, SyntheticConfig, SyntheticData


@dataclasses.dataclass(frozen=True)
class SyntheticSpec(DataSpec):
    """Metadata of the synthetic sequences, saved in the run folder.

    Attributes:
        num_tokens: Number of different tokens, including special tokens.
        chance: Accuracy of random guesses.
        checksum: Checksum of the first training, validation and test batches.
    """

    num_tokens: int
    chance: float
    checksum: str
    free_fields: ClassVar[tuple[str, ...]] = ("chance", "checksum")

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one symbol of a stream."""
        return jax.ShapeDtypeStruct((1,), jnp.int32)

    def check(self) -> None:
        """Checks types and sizes of what was read from the run folder."""
        super().check()
        check_integers(2, 2**31, num_tokens=self.num_tokens)


Generator: TypeAlias = data.NextSymbol | QueriedSequences

ROWS = 100
"""Number of predictions per validation or test series, as in the paper."""


def make_generator(options: SyntheticData) -> Generator:
    """Makes the generator of the series or sequences that options name."""
    context, base = options.context, options.base
    if "+" not in options.rules:
        check_choice((*RULES, *RECALL), rules=options.rules)
    if not options.recalls:
        rules = data.parse_rules(options.rules, base, options.delay, options.condition)
        return data.NextSymbol(rules, context)
    if options.rules == "copying" and context % 2:
        raise OptionError(
            f"rules='copying' needs an even context, because a half is copied, got {context}.",
            "context",
        )
    make: dict[str, Callable[[], QueriedSequences]] = {
        "recall": lambda: data.AssociativeRecall(options.num_pairs, context, base),
        "copying": lambda: data.Copying(context // 2, base),
        "induction": lambda: data.Induction(context, base),
        "parity": lambda: data.Parity(context),
    }
    try:
        return make[options.rules]()
    except OptionError as error:  # name the options of the run instead
        names = {"length": "context", "num_symbols": "base", "num_copied": "context"}
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise OptionError(text, *(names.get(name, name) for name in error.options)) from None


def make_batches(generator: Generator, config: SyntheticConfig) -> training.Splits:
    """Makes training, validation and test batches, each from its own random stream.

    A training epoch is one batch: the windows of one series, or the same number of sequences.
    Validation and test batches are one series of ``ROWS`` windows each, or ``ROWS`` sequences, and
    always the same.
    """
    seed = config.seed

    def fixed(series: int, stream: int) -> data.GeneratedBatches:
        return data.GeneratedBatches(generator, ROWS, series, seed=seed, stream=stream, fixed=True)

    return training.Splits(
        data.GeneratedBatches(generator, config.fit.batch_size, 1, seed=seed, stream=0),
        fixed(config.data.validation_series, 1),
        fixed(config.data.test_series, 2),
    )


def compute_checksum(splits: training.Splits) -> str:
    """Checksum of the first batch of each split."""
    firsts = [source.batch(0) for source in splits if source is not None]
    return checksum(batch[name] for batch in firsts for name in sorted(batch))
