"""What a model of events said after one, and what that says of the next."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from flax_linattn.models.event_forecaster import next_event
from flax_linattn.typing import Array


class Seen(NamedTuple):
    """An event of a stream, and what the model said after it.

    Attributes:
        time: of the event, or of the begin of a sequence.
        outputs: of the model after it, float32 [outputs].
        observation: as the model took it in, float32 [W].
    """

    time: float
    outputs: NDArray[np.float32]
    observation: NDArray[np.float32]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def tell(
    num_components: int,
    spread: float,
    shares: tuple[float, ...],
    most: int,
    outputs: Array,
    log_gap: Array,
    mark: Array,
    within: Array,
) -> dict[str, Array]:
    """What outputs say of an event that came, and of the one to come.

    Args:
        num_components: K, of the model's mixture.
        spread: of the model.
        shares: Q quantiles of the time to the next event, each above 0 and below 1.
        most: how many of the likeliest marks.
        outputs: of the model after an event, float32 [3 K + M].
        log_gap: log of the time from it to the next one, in units of the scale, float32 [].
        mark: of the next one, int [].
        within: log of a time from it on, in units of the scale, float32 [].

    Returns:
        "time" and "mark", log density and log probability of the one that came; "log_mean" and
        "log_quantiles" [Q], logs of times in units of the scale; "within", the probability of an
        event up to that time; "top" and "p", the likeliest marks and their probabilities, [most].
    """
    following = next_event(outputs, num_components, spread)
    marks = following.log_marks()
    p, top = jax.lax.top_k(jnp.exp(marks), most)
    return {
        "time": following.gap.log_density(log_gap),
        "mark": marks[mark],
        "log_mean": following.gap.log_mean(),
        "log_quantiles": jnp.array([following.gap.log_quantile(share) for share in shares]),
        "within": following.gap.probability_by(within),
        "p": p,
        "top": top,
    }
