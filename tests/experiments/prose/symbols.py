"""Numbers in docs/symbols.md."""

from typing import Any

from experiments.symbols import ladder
from tests.experiments.prose import Allowed, Sentence, stored


def row(figure: str, *place: Any) -> dict[str, Any]:
    """Of a figure: attention, context, setting."""
    return ladder.row_of(stored(f"symbols/{figure}.json")["rows"], *place)


def trapped() -> list[Any]:
    """How both attentions fare at the middle context."""
    own, other = (row("figure3", name, 32) for name in (ladder.EXPRESSIVE, ladder.DOT_PRODUCT))
    share = ladder.share(own)
    return [share.did, share.of, ladder.share(other).did, ladder.median(other)]


def escaped() -> list[Any]:
    """Dot-product attention by its own setting."""
    share = ladder.share(row("figure3", ladder.DOT_PRODUCT, 32, ladder.DOT_PRODUCT))
    return [share.did, share.of]


SENTENCES: list[Sentence] = [
    Sentence(
        "with a context of 32 all of {1} runs of expressive attention reach 100 % "
        "({0}), of dot-product attention {2} does; it stays at {3:.2f}",
        trapped,
    ),
]
ALLOWED: list[Allowed] = [Allowed("| momentum | 0.9 |", "a setting")]
