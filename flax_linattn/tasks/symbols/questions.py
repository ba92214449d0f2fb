"""What a stream of a sequence asks, and the right answers: both stand in the symbols so far."""

from __future__ import annotations

from typing import Any

from flax_linattn.checks import shown
from flax_linattn.tasks.symbols.options import SymbolsData


class Questions:
    """The questions of a sequence, one symbol after another.

    Of recall a key behind the pairs is one, of copying each symbol of the second half, of induction
    a trigger after the first, of parity each bit.

    Args:
        options: of sequences that are no series.
        num_tokens: different tokens, special ones among them.

    Example:
        >>> questions = Questions(SymbolsData("recall", base=8, num_pairs=2, context=10), 9)
        >>> [questions.answer(symbol) for symbol in (3, 8, 1, 7, 3, 0, 0, 0, 1, 0)]
        [None, None, None, None, 8, None, None, None, 7, None]
    """

    def __init__(self, options: SymbolsData, num_tokens: int) -> None:
        self._rules = options.rules
        self._last = num_tokens - 1
        """The largest token; of induction the trigger."""
        half = options.context // 2
        self._most = {"recall": 2 * options.num_pairs, "copying": half, "induction": 2}
        self.reset()

    def reset(self) -> None:
        """A new sequence begins."""
        self._step = 0
        self._kept: list[int] = []
        """What answers are made of: the pairs; the first half; the trigger and what stood behind
        it; the parity of the bits."""

    def answer(self, symbol: int) -> int | None:
        """Takes in a symbol; the right answer to what it asks, None where it asks nothing."""
        self._step += 1
        match self._rules:
            case "recall":
                return self._value(symbol)
            case "copying":
                return self._copied(symbol)
            case "induction":
                return self._behind(symbol)
        self._kept = [symbol ^ sum(self._kept)]
        return self._kept[0]

    def _value(self, symbol: int) -> int | None:
        if self._step <= self._most["recall"]:
            self._kept.append(symbol)
            return None
        pairs = dict(zip(self._kept[::2], self._kept[1::2], strict=True))
        return pairs.get(symbol) if symbol else None  # 0 is filler

    def _copied(self, symbol: int) -> int | None:
        place = self._step - 1 - self._most["copying"]
        if place < 0:
            self._kept.append(symbol)
            return None
        return self._kept[place] if place < len(self._kept) else None

    def _behind(self, symbol: int) -> int | None:
        if len(self._kept) == 1 or (not self._kept and symbol == self._last):
            self._kept.append(symbol)
            return None
        return self._kept[1] if symbol == self._last else None

    def facts(self) -> list[int]:
        """What a state file keeps of the sequence beside its step."""
        return list(self._kept)

    def restore(self, step: int, kept: Any) -> None:
        """Goes on within a sequence.

        Args:
            step: symbols of it so far.
            kept: as ``facts`` gave it.

        Raises:
            ValueError: it is nothing that so many symbols leave.
        """
        most = min(step, self._most.get(self._rules, 1))
        fits = (
            isinstance(kept, list)
            and all(type(symbol) is int and 0 <= symbol <= self._last for symbol in kept)
            and len(kept) <= most
        )
        if self._rules == "induction":
            fits = fits and kept[:1] in ([], [self._last])
        else:
            fits = fits and len(kept) == most
        if not fits:
            raise ValueError(
                f"expected what {step} symbols of {self._rules} leave to answer from, got "
                f"{shown(kept)}"
            )
        self._step, self._kept = step, list(kept)
