"""Running sums in two floats, whose differences are accurate to their own rounding.

The decay between two tokens is a difference of running sums from the first token on. Around -60,000
float32 has steps of 1/256, so a difference of 0.05 would be lost. Here each sum is a float and its
rounding error, by error-free additions (Knuth, "The Art of Computer Programming", volume 2, section
4.2.2; Dekker, 1971): twice the digits, so that

    c_i - c_j = (high_i - high_j) + (low_i - low_j)

has a relative error of some 1e-7 as long as |c| is below 1e6 times the difference.

A compiler that treats floats as real numbers would simplify ``low`` to 0. XLA does so only if a
user sets its flags for fast mathematics.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.typing import Array


class DoubleFloat(NamedTuple):
    """Numbers represented as the unevaluated sum ``high + low``.

    Attributes:
        high: Number rounded to the dtype.
        low: Rounding error of ``high``, of the same shape and dtype.
    """

    high: Array
    low: Array

    def subtract(self, other: DoubleFloat) -> Array:
        """Returns the rounded difference; shapes broadcast.

        Example:
            >>> import jax.numpy as jnp
            >>> a, b = (DoubleFloat(jnp.float32(2**24), jnp.float32(x)) for x in (0.5, 0.25))
            >>> float(a.subtract(b))
            0.25
        """
        return (self.high - other.high) + (self.low - other.low)

    def add(self, other: DoubleFloat) -> DoubleFloat:
        """Returns the sum as a double float.

        Example:
            >>> import jax.numpy as jnp
            >>> a, b = (DoubleFloat(jnp.float32(x), jnp.float32(0)) for x in (2**24, 0.5))
            >>> [float(x) for x in a.add(b)]
            [16777216.0, 0.5]
        """
        total = self.high + other.high
        part = total - self.high
        lost = (self.high - (total - part)) + (other.high - part)  # what rounding took, exactly
        lost = lost + (self.low + other.low)
        high = total + lost
        return DoubleFloat(high, lost - (high - total))


@jax.custom_jvp
def running_sum(x: Array) -> DoubleFloat:
    """Computes sums of ``x`` over axis 1 up to and including each position.

    Args:
        x: Finite numbers of shape [B, S, ...].

    Returns:
        Sums of the shape of ``x``. ``high`` carries the whole derivative.

    Example:
        >>> import jax.numpy as jnp
        >>> c = running_sum(jnp.array([[-1e6, -1e-3, -1e-3]], jnp.float32))
        >>> c.high.tolist()
        [[-1000000.0, -1000000.0, -1000000.0]]
        >>> one_back = DoubleFloat(c.high[:, 1:], c.low[:, 1:]).subtract(DoubleFloat(c.high[:, :-1],
        ...                                                                   c.low[:, :-1]))
        >>> one_back.round(6).tolist()
        [[-0.0010000000474974513, -0.0010000000474974513]]
    """
    sums = jax.lax.associative_scan(DoubleFloat.add, DoubleFloat(x, jnp.zeros_like(x)), axis=1)
    return DoubleFloat(*sums)


@running_sum.defjvp
def _running_sum_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[DoubleFloat, DoubleFloat]:
    (x,), (dx,) = primals, tangents
    return running_sum(x), DoubleFloat(
        jax.lax.associative_scan(jnp.add, dx, axis=1), jnp.zeros_like(dx)
    )
