"""What comes later changes no bit of what came before, and no row changes another."""

import numpy as np

from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.contract.heads import HEADS, ROWS, STREAMING, model_of, observations, run
from tests.nn.cases import run_steps


@STREAMING
def test_later_observations_change_nothing_earlier(name, mechanism):
    model, x = model_of(name, mechanism), observations(name)
    other = HEADS[name].other(x)
    before, _ = run(name, model, x)
    for t in (1, 4, 7):
        changed = np.concatenate([x[:, :t], other[:, t:]], axis=1)
        after, _ = run(name, model, changed)
        assert_same_bits(after[:, :t], before[:, :t])
        assert not np.allclose(after[:, t:], before[:, t:], rtol=0, atol=1e-5)


@STREAMING
def test_rows_are_by_themselves(name, mechanism):
    model, x = model_of(name, mechanism), observations(name)
    before, _ = run(name, model, x)
    x[1] = 99 if x.dtype.kind == "i" else np.nan
    assert_same_bits(run(name, model, x)[0][0], before[0])
    streamed, _ = run_steps(model, x, model.init_state(ROWS))
    assert_close(streamed[0], before[0], "float32")
