"""The numbers in the prose of the documentation, each recomputed from what is stored.

A page's module (``time_series``, ``results``, ``efficiency``) holds its ``SENTENCES``, templates
with the values that belong into them, and ``ALLOWED``, phrases whose numbers no file of ours holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from experiments.measured import Measured
from experiments.statements import Statement

DOCS = Path(__file__).parents[3] / "docs"
EXPERIMENTS = Path(__file__).parents[3] / "experiments"

WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

_FENCE = re.compile(r"^(```+|:::+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(
    r"^(```+)\{(?:efficiency-result|figure)\}.*?\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL
)
_NOT_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$")
_UNIT = r"(?:%|percent\b|points?\b|times\b|us\b|ms\b|s\b|[kMG]B\b|bytes\b)"
_NEXT = r"(?:(?: to | or | and |, | ± | / | - )-?[\d.,]*\d)"
_NUMBER = re.compile(
    rf"(?<![\w.])-?(?:\d[\d,]*\.\d+(?:e-?\d+)?|\d+e-?\d+|\d[\d,]*(?={_NEXT}* {_UNIT}))"
)


class Sentence(NamedTuple):
    """A sentence, or a part of one.

    Attributes:
        text: as in the document, white space apart, with a field of ``str.format`` a number.
        values: gives what belongs into the fields, from stored results.
    """

    text: str
    values: Callable[[], Iterable[Any]]

    def written(self) -> str:
        """The sentence with today's numbers."""
        return self.text.format(*self.values())


class Allowed(NamedTuple):
    """A phrase whose numbers are not of our results.

    Attributes:
        text: as in the document.
        reason: what they are: the paper's own, a size, a setting.
    """

    text: str
    reason: str


def find_statement(experiment: Measured, text: str) -> Statement:
    """The one statement of an experiment with these words."""
    (found,) = (each for each in experiment.statements if text in each.says)
    return found


def stored(path: str) -> Any:
    """What a file of experiments/ holds, such as "streaming/loop.json"."""
    return json.loads((EXPERIMENTS / path).read_text())


def spelled(number: int) -> str:
    """A small number as a word, as running text has it."""
    return WORDS[number] if number < len(WORDS) else f"{number:,}"


def power(value: float) -> str:
    """A power of ten with one digit, as running text has it: "2e-6"."""
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit}e{int(exponent)}"


def prose(text: str) -> str:
    """A page with joined lines; of fenced blocks only the captions of figures stay."""
    return " ".join(_FENCE.sub(" ", _FIGURE.sub(r"\2", text)).split())


def page(name: str) -> str:
    """The prose of a page of the documentation, or of the README."""
    folder = DOCS.parent if name == "README" else DOCS
    return prose((folder / f"{name}.md").read_text())


def unchecked(text: str, phrases: Iterable[str]) -> list[str]:
    """Numbers with decimals, powers of ten or units that lie in none of the phrases, in context."""
    covered = list(_spans(text, phrases))
    covered += [match.span() for match in _NOT_PROSE.finditer(text)]
    return [
        text[max(0, match.start() - 40) : match.end() + 20]
        for match in _NUMBER.finditer(text)
        if not any(begin <= match.start() and match.end() <= end for begin, end in covered)
    ]


def _spans(text: str, phrases: Iterable[str]) -> Iterator[tuple[int, int]]:
    for phrase in phrases:
        for match in re.finditer(re.escape(phrase), text):
            yield match.span()
