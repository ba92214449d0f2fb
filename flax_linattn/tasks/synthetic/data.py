"""What a run on symbols generates, and what it remembers of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from flax_linattn import data, training
from flax_linattn.checks import OptionError, at_least, choice
from flax_linattn.data.generators.nt import RULES
from flax_linattn.data.generators.recall import QueriedSequences
from flax_linattn.tasks.files import checksum
from flax_linattn.tasks.spec import DataSpec
from flax_linattn.tasks.synthetic.options import RECALL, SyntheticConfig, SyntheticData


@dataclasses.dataclass(frozen=True)
class SyntheticSpec(DataSpec):
    """What is drawn; kept in the run folder.

    Attributes:
        num_tokens: different tokens, special ones among them.
        chance: how often a guess at random is right.
        checksum: of the first batches to train, validate and test on.
    """

    num_tokens: int
    chance: float
    checksum: str
    free_fields: ClassVar[tuple[str, ...]] = ("chance", "checksum")

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape of a stream's input: one symbol."""
        return jax.ShapeDtypeStruct((1,), jnp.int32)

    def check(self) -> None:
        """Checks types and sizes of what was read from the run folder."""
        super().check()
        at_least(2, 2**31, num_tokens=self.num_tokens)


Drawn: TypeAlias = data.NextSymbol | QueriedSequences

ROWS = 100
"""Symbols asked for of a series that is validated or tested on, as the paper has it."""


def make_generator(options: SyntheticData) -> Drawn:
    """The series or sequences that options name."""
    context, base = options.context, options.base
    if "+" not in options.rules:
        choice((*RULES, *RECALL), rules=options.rules)
    if not options.recalls:
        rules = data.parse_rules(options.rules, base, options.delay, options.condition)
        return data.NextSymbol(rules, context)
    if options.rules == "copying" and context % 2:
        raise OptionError(
            f"copying takes an even context, a half to copy it to, got {context}.", "context"
        )
    make: dict[str, Callable[[], QueriedSequences]] = {
        "recall": lambda: data.AssociativeRecall(options.num_pairs, context, base),
        "copying": lambda: data.Copying(context // 2, base),
        "induction": lambda: data.Induction(context, base),
        "parity": lambda: data.Parity(context),
    }
    try:
        return make[options.rules]()
    except OptionError as error:  # by the names of the options of a run
        names = {"length": "context", "num_symbols": "base", "num_copied": "context"}
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise OptionError(text, *(names.get(name, name) for name in error.options)) from None


def make_batches(drawn: Drawn, config: SyntheticConfig) -> training.Splits:
    """Batches to train, validate and test on, each drawn from a stream of its own.

    An epoch of training is one batch: one series cut into windows, or as many sequences. Those of
    validation and test are a series each, of ``ROWS`` windows, or as many sequences, and always the
    same.
    """
    seed = config.seed

    def fixed(series: int, stream: int) -> data.GeneratedBatches:
        return data.GeneratedBatches(drawn, ROWS, series, seed=seed, stream=stream, fixed=True)

    return training.Splits(
        data.GeneratedBatches(drawn, config.fit.batch_size, 1, seed=seed, stream=0),
        fixed(config.data.validation_series, 1),
        fixed(config.data.test_series, 2),
    )


def compute_checksum(splits: training.Splits) -> str:
    """Of the first batch of each part."""
    firsts = [source.batch(0) for source in splits if source is not None]
    return checksum(batch[name] for batch in firsts for name in sorted(batch))
