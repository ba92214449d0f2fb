"""Packed sequences are what they are by themselves."""

import numpy as np
import pytest

from tests.contract.tolerances import assert_close
from tests.models.cases import rows_of_segments
from tests.models.contract.heads import (
    FIRST,
    HEADS,
    LENGTH,
    ROWS,
    fillers,
    heads,
    model_of,
    observations,
    run,
)
from tests.nn.cases import PACKED, call

PACKABLE = {case.id for case in PACKED}


def packs(case):
    return case.packs and case.streams


@heads(packs, fast="aaren")
def test_a_packed_sequence_is_that_sequence_alone(name, mechanism):
    """At once and in three calls, which split sequences."""
    if str(mechanism).split(":")[0] not in PACKABLE:
        pytest.skip("a mechanism without packed sequences")
    model, x = model_of(name, mechanism), observations(name)
    ids, mask, sequences = rows_of_segments()
    poisoned = x.copy()
    poisoned[~mask] = fillers(x)[0]

    def packed(real, state=None):
        how = {"mask": real, "segment_ids": ids, "state": state, "return_state": True}
        return call(model, poisoned, **how, **HEADS[name].every)

    found, _ = packed(mask)
    for row, places in sequences:
        alone, first = np.zeros_like(x), np.zeros((ROWS, LENGTH), bool)
        alone[:, : len(places)], first[:, : len(places)] = x[row, places], True
        want = run(name, model, alone, first)[0][0, : len(places)]
        assert_close(found[row, places], want, "float32")
    state = None
    for start, end in ((0, 3), (3, 6), (6, 8)):
        real = mask & (np.arange(LENGTH) >= start) & (np.arange(LENGTH) < end)
        part, state = packed(real, state)
        assert_close(part[real], found[real], "float32")


@FIRST
def test_heads_of_one_sequence_in_each_row_say_so(name, mechanism):
    if not HEADS[name].packs:
        model, x = model_of(name, mechanism), observations(name)
        with pytest.raises(ValueError, match=r"pass each .* in its own row"):
            model(x, segment_ids=np.zeros((ROWS, LENGTH), np.int32))
