"""The measurement of long streams runs, and its table shows what it measured."""

import pytest

pytest.importorskip("experiments", reason="the experiments are not part of the installed package")

from experiments.streaming import loop
from flax_linattn.bench import provenance


def test_the_loop_is_measured() -> None:
    rows = loop.in_one_program("aaren", rounds=1, lengths=(8, 16))
    step = loop.from_python("aaren", 2, rounds=1, calls=3)
    assert [row["state_bytes"] for row in rows] == [2112, 2112]
    assert all(row["finite"] and row["us"] > 0 for row in rows)
    text = loop.table(provenance("measure") | {"loop": rows, "step": [step]})
    assert "| 8 tokens | 16 tokens |" in text and "2,112 bytes" in text and "`measure`" in text
