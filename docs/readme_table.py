"""Writes the table of six mechanisms in README.md from the registry.

Usage: python docs/readme_table.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from mechanism_facts import LENGTHS, state_bytes

from flax_linattn import ops

README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- from the registry, by `make readme` -->\n"
END = "<!-- end -->\n"
MECHANISMS = (
    "softmax",
    "aaren",
    "elementwise_series",
    "taylorshift",
    "expressive_quadratic",
    "gated_delta",
)
"""One of each family, and softmax; docs/mechanisms/index.md lists all."""


def table() -> str:
    """Format a row for each mechanism: its page, what it is, and the size of its state."""
    heads = ["name", "what it is", *(f"state after {tokens:,}" for tokens in LENGTHS)]
    rows = [heads, ["---"] * len(heads)]
    for name in MECHANISMS:
        sizes = [human(state_bytes(name, tokens)) for tokens in LENGTHS]
        page = f"[`{name}`](docs/mechanisms/{name}.md)"
        rows.append([page, ops.get_mechanism(name).about, *sizes])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def human(size: int | None) -> str:
    """Bytes with two or three digits: 65.5 MB."""
    if size is None:
        return "none"
    number, unit = (size / 1e6, "MB") if size >= 1e6 else (size / 1e3, "kB")
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"


def written(text: str) -> str:
    """``text`` with the table between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md must have the lines {BEGIN.strip()!r} and {END.strip()!r}.")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
