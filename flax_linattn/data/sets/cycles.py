"""The cycles of NT series: how long they are, and how many there are of each length."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.data.sets.nt import Rule

_MOST_COUNTED = 40
_MOST_FOLLOWED = 24
"""Of bits: as many states as 2 to that power."""


def count_cycles(rule: Rule) -> dict[int, int]:
    """Counts the cycles of a linear rule, without following them.

    The state follows from the one before by a matrix C. A state comes back after L steps, or
    earlier, if C**L - 1 maps it to 0, and elimination tells how many such states there are. This is
    done for every L that divides the order of C, modulo each power of a prime that the base is a
    product of; the cycles of the base are pairs of theirs (Chinese remainder theorem).

    With n = ``rule.order`` and a prime p, that takes at most D + F powers of C, each O(n**3) for a
    bit of its exponent: D divisors of the order, and F prime factors of a multiple of it, of
    (p - 1) (p**2 - 1) ... (p**n - 1). Finding those is O(p**(n/2)). The paper's series take
    milliseconds, the largest that are allowed seconds.

    Args:
        rule: "nt" or "nt-s", of at most 2**40 states.

    Returns:
        Length of the cycles -> how many there are, the longest first.

    Raises:
        OptionError: The rule is not linear, or has more states.

    Example:
        >>> cycles = count_cycles(Rule(base=16, delay=2))
        >>> cycles
        {56: 64, 28: 16, 14: 4, 7: 1, 1: 1}
        >>> round(16**3 / sum(cycles.values()), 3)  # the mean length
        47.628
    """
    if rule.name == "nt-r":
        raise OptionError("the rule must be linear, got 'nt-r'; follow its cycles instead.", "name")
    _check_states(rule, _MOST_COUNTED)
    matrix = np.eye(rule.order, k=1, dtype=np.int64)
    matrix[-1] = rule.next_symbol(np.eye(rule.order, dtype=np.int64))
    cycles = {1: 1}
    for prime, power in Counter(_prime_factors(rule.base)).items():
        cycles = _pairs(cycles, _cycles(matrix, prime, power))
    return dict(sorted(cycles.items(), reverse=True))


def follow_cycles(rule: Rule) -> dict[int, int]:
    """Counts the cycles of any invertible rule, by following every state.

    With S states and a longest cycle of L it takes O(S log L) in time, O(S) in memory: about 600 MB
    for the most states.

    Args:
        rule: Of at most 2**24 states.

    Returns:
        Length of the cycles -> how many there are, the longest first.

    Raises:
        OptionError: The rule is not invertible, or has more states.

    Example:
        >>> sum(follow_cycles(Rule(base=16, delay=2, name="nt-r")).values())
        40
    """
    _check_states(rule, _MOST_FOLLOWED)
    after = _successors(rule)
    if np.bincount(after).max() > 1:
        raise OptionError(
            f"the rule must be invertible, but under the condition {rule.condition!r} one state "
            f"follows on several; choose a condition without x{rule.order}.",
            "condition",
        )
    # The least state of the first 1, 2, 4, ... from each one on, until that is all of the cycle.
    least = np.arange(after.size)
    while np.any((lower := np.minimum(least, least[after])) < least):
        least, after = lower, after[after]
    lengths = np.bincount(least)
    lengths, counts = np.unique(lengths[lengths > 0], return_counts=True)
    return dict(zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True))


def _check_states(rule: Rule, bits: int) -> None:
    if rule.order * math.log2(rule.base) > bits:
        raise OptionError(
            f"there must be at most 2**{bits} states, got {rule.base}**{rule.order}; lower the "
            "base or the delay.",
            "base",
            "delay",
        )


def _successors(rule: Rule) -> NDArray[np.int64]:
    """The state after each one; a state is written as a number of ``order`` digits."""
    window = np.ogrid[(slice(rule.base),) * rule.order]
    symbols = np.broadcast_to(rule.next_symbol(window), (rule.base,) * rule.order).ravel()
    return np.arange(symbols.size) * rule.base % symbols.size + symbols


def _pairs(first: Mapping[int, int], second: Mapping[int, int]) -> dict[int, int]:
    """The cycles of states that consist of two independent parts."""
    cycles: Counter[int] = Counter()
    for (length, count), (other, others) in itertools.product(first.items(), second.items()):
        cycles[math.lcm(length, other)] += count * others * math.gcd(length, other)
    return dict(cycles)


def _cycles(matrix: NDArray[np.int64], prime: int, power: int) -> dict[int, int]:
    """The cycles modulo ``prime**power``."""
    modulus = prime**power
    order = _order(matrix, prime, power)
    divisors = [
        math.prod(parts)
        for parts in itertools.product(*([p**i for i in range(e + 1)] for p, e in order.items()))
    ]
    states: dict[int, int] = {}  # that come back after so many steps, and not before
    for length in sorted(divisors):
        back = _power(matrix, length, modulus) - np.eye(len(matrix), dtype=np.int64)
        known = sum(number for earlier, number in states.items() if length % earlier == 0)
        states[length] = _kernel_size(back % modulus, prime, power) - known
    return {length: number // length for length, number in states.items() if number}


def _order(matrix: NDArray[np.int64], prime: int, power: int) -> dict[int, int]:
    """The prime factors, with multiplicity, of the least L > 0 with ``matrix**L`` = 1."""
    modulus, size = prime**power, len(matrix)
    factors: Counter[int] = Counter()  # of a multiple of it
    for degree in range(1, size + 1):
        factors |= Counter(_prime_factors(prime**degree - 1))
    factors[prime] = power - 1 + next(i for i in range(size) if prime**i >= size)
    order = math.prod(p**e for p, e in factors.items())
    one = np.eye(size, dtype=np.int64)
    for factor in factors:
        while factors[factor] and (_power(matrix, order // factor, modulus) == one).all():
            order //= factor
            factors[factor] -= 1
    return factors


def _power(matrix: NDArray[np.int64], exponent: int, modulus: int) -> NDArray[np.int64]:
    result = np.eye(len(matrix), dtype=np.int64)
    while exponent:
        if exponent & 1:
            result = result @ matrix % modulus
        matrix = matrix @ matrix % modulus
        exponent >>= 1
    return result


def _kernel_size(matrix: NDArray[np.int64], prime: int, power: int) -> int:
    """How many vectors a square matrix maps to 0, modulo ``prime**power``, by elimination.

    The pivots are units as long as there are any; then all that is left is divided by the prime.
    """
    modulus, divided, size = prime**power, 1, 1
    while len(matrix) and modulus > 1:
        units = np.argwhere(matrix % prime)
        if not len(units):
            matrix, modulus, divided = matrix // prime, modulus // prime, divided * prime
            continue
        row, column = units[0]
        factors = matrix[:, column] * pow(int(matrix[row, column]), -1, modulus) % modulus
        matrix = (matrix - np.outer(factors, matrix[row])) % modulus
        matrix = np.delete(np.delete(matrix, row, axis=0), column, axis=1)
        size *= divided
    return int(size * divided ** len(matrix))


def _prime_factors(number: int) -> list[int]:
    """With multiplicity, by trial division."""
    factors, candidate = [], 2
    while candidate**2 <= number:
        if number % candidate:
            candidate += 1
        else:
            number //= candidate
            factors.append(candidate)
    return factors + [number] * (number > 1)
