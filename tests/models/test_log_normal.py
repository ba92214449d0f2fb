"""Mixtures of log-normal distributions, against scipy in float64, far out in both tails."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from flax_linattn.models import LogNormalMixture
from tests.contract.tolerances import assert_close, assert_same_bits

EPS = float(np.finfo(np.float32).eps)
SCALES = np.log([1e-9, 1.0, 1e9])
"""Of times in a unit of years, of themselves, of nanoseconds."""


def mixture(seed: int, K: int, shift: float, weights: str = "even") -> LogNormalMixture:
    """K components of stds from 0.01 to 10, in float32 NumPy."""
    rng = np.random.default_rng(seed)
    logits = {"even": 1.0, "uneven": 30.0, "one": 1.0}[weights] * rng.normal(size=K)
    if weights == "one":
        logits[1:] = -np.inf
    return LogNormalMixture(
        special.log_softmax(logits).astype(np.float32),
        (shift + rng.normal(size=K) * 3).astype(np.float32),
        np.exp(rng.uniform(np.log(0.01), np.log(10), K)).astype(np.float32),
    )


def stacked(mixtures: list[LogNormalMixture]) -> LogNormalMixture:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *mixtures)


def case(K: int) -> LogNormalMixture:
    """[9, K]: every scale with every kind of weights."""
    kinds = ("even", "uneven", "one")
    own = [
        mixture(3 * i + j, K, shift, kind)
        for i, shift in enumerate(SCALES)
        for j, kind in enumerate(kinds)
    ]
    own[0] = own[0]._replace(stds=np.geomspace(0.01, 10, K).astype(np.float32))
    return stacked(own)


CASES = {"one component": case(1), "eight components": case(8)}
of_cases = pytest.mark.parametrize("own", CASES.values(), ids=CASES)


def points(own: LogNormalMixture) -> np.ndarray:
    """Log times [n, rows]: 30 stds to both sides of the middle of some component."""
    z = np.concatenate([np.linspace(-20, 20, 41), [-30, -25, 25, 30]])
    component = np.arange(len(z)) % own.means.shape[1]
    return (own.means[:, component] + z * own.stds[:, component]).T.astype(np.float32)


class Reference(NamedTuple):
    """A mixture in float64, by scipy; ``sizes`` are of the largest terms of the two logs."""

    log_weights: np.ndarray
    means: np.ndarray
    stds: np.ndarray

    @classmethod
    def of(cls, own: LogNormalMixture) -> "Reference":
        return cls(*(np.asarray(leaf, np.float64) for leaf in own))

    def terms(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log densities, survivals and distributions [..., K], times their weights."""
        z = (x[..., None] - self.means) / self.stds
        log_pdf = stats.norm.logpdf(z) - np.log(self.stds) - x[..., None]
        return tuple(
            self.log_weights + a for a in (log_pdf, special.log_ndtr(-z), special.log_ndtr(z))
        )

    def log_density(self, x: np.ndarray) -> np.ndarray:
        return special.logsumexp(self.terms(x)[0], axis=-1)

    def log_survival(self, x: np.ndarray) -> np.ndarray:
        return special.logsumexp(self.terms(x)[1], axis=-1)

    def log_distribution(self, x: np.ndarray) -> np.ndarray:
        return special.logsumexp(self.terms(x)[2], axis=-1)

    def rounding(self, x: np.ndarray) -> np.ndarray:
        """What float32 may lose of any of the logs: by the sizes of what is added up.

        Of the component that weighs most, and the weights as float32 holds them do not quite sum to
        one. Eight roundings are two of each term.
        """
        z = (x[..., None] - self.means) / self.stds
        size = z**2 / 2 + np.abs(np.log(self.stds)) + np.abs(self.log_weights)
        largest = [np.argmax(terms, axis=-1)[..., None] for terms in self.terms(x)]
        found = [np.take_along_axis(size, index, axis=-1)[..., 0] for index in largest]
        return 8 * EPS * (1 + np.abs(x) + np.maximum.reduce(found))


@jax.jit
def told(own: LogNormalMixture, x: jax.Array) -> dict[str, jax.Array]:
    return {
        "log_density": own.log_density(x),
        "log_survival": own.log_survival(x),
        "log_distribution": own.log_distribution(x),
        "log_hazard": own.log_hazard(x),
        "log_mean": own.log_mean(),
    }


def assert_within(got: jax.Array, want: np.ndarray, tolerance: np.ndarray, what: str = "") -> None:
    got = np.asarray(got)
    assert got.dtype == np.float32
    assert np.isfinite(got).all(), what
    error = np.abs(got - want) / tolerance
    assert error.max() <= 1, f"{what}: {error.max():.3g} times what it may be"


@of_cases
def test_what_is_known_of_a_time(own: LogNormalMixture) -> None:
    x, reference = points(own), Reference.of(own)
    got, wide = told(own, x), x.astype(np.float64)
    tolerance = reference.rounding(wide)
    density, survival, distribution = (
        getattr(reference, name)(wide)
        for name in ("log_density", "log_survival", "log_distribution")
    )
    assert_within(got["log_density"], density, tolerance, "density")
    assert_within(got["log_survival"], np.minimum(survival, 0), tolerance, "survival")
    assert_within(got["log_distribution"], np.minimum(distribution, 0), tolerance, "distribution")
    assert_within(got["log_hazard"], density - survival, 2 * tolerance, "hazard")
    assert (got["log_survival"] <= 0).all() and (got["log_distribution"] <= 0).all()
    exponents = reference.means + reference.stds**2 / 2
    mean = special.logsumexp(reference.log_weights + exponents, axis=-1)
    assert_within(got["log_mean"], mean, 8 * EPS * (30 + np.abs(mean)), "mean")


def test_one_component_is_scipys_log_normal() -> None:
    """Times themselves, not their logs, where float64 holds them."""
    own = LogNormalMixture(np.zeros(1, np.float32), np.float32([0.5]), np.float32([1.5]))
    x = np.linspace(-5, 5, 11, dtype=np.float32)
    want = stats.lognorm(s=1.5, scale=np.exp(0.5))
    got, times = told(own, x), np.exp(x.astype(np.float64))
    assert_close(got["log_density"], want.logpdf(times), "float32")
    assert_close(got["log_survival"], want.logsf(times), "float32")
    assert_close(np.exp(got["log_mean"]), np.array(want.mean()), "float32")


def test_no_time_and_all_time() -> None:
    """A time of 0, and an endless one."""
    own = CASES["eight components"]
    ends = np.array([[-np.inf], [np.inf]], np.float32)
    got = told(own, ends)
    assert_close(np.exp(got["log_survival"]), np.repeat([[1.0], [0.0]], 9, axis=1), "float32")
    assert_close(np.exp(got["log_distribution"]), np.repeat([[0.0], [1.0]], 9, axis=1), "float32")


def test_the_density_integrates_to_one() -> None:
    own = CASES["eight components"]
    steps = np.linspace(-9, 9, 4001)
    for component in range(8):  # each by itself: their stds differ too much for one grid
        mean, deviation = own.means[:, component], own.stds[:, component]
        single = LogNormalMixture(np.zeros((9, 1), np.float32), mean[:, None], deviation[:, None])
        x = (mean + deviation * steps[:, None]).astype(np.float32)
        density = np.exp(np.asarray(told(single, x)["log_density"], np.float64) + x)
        # Rows whose deviation is that of some roundings have no even steps.
        np.testing.assert_allclose(np.trapezoid(density, x, axis=0), 1, rtol=2e-4)
    alike = own._replace(stds=np.full_like(own.stds, 2.0))
    x = (np.linspace(-40, 40, 4001)[:, None] + np.repeat(SCALES, 3)).astype(np.float32)
    density = np.exp(np.asarray(told(alike, x)["log_density"], np.float64) + x)
    np.testing.assert_allclose(np.trapezoid(density, x, axis=0), 1, rtol=2e-5)


SHARES = np.array([1e-30, 1e-7, 1e-3, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999, 1 - 1e-7], np.float32)


@jax.jit
def quantiles(own: LogNormalMixture, shares: jax.Array, waited: jax.Array) -> jax.Array:
    return own.log_quantile(shares, waited)


def assert_quantiles(
    own: LogNormalMixture, q: np.ndarray, shares: np.ndarray, waited: np.ndarray
) -> None:
    """Between what float64 says a few roundings of the time below and above."""
    reference = Reference.of(own)
    shares, waited = shares.astype(np.float64), waited.astype(np.float64)
    assert np.isfinite(q).all()
    left = np.where(np.isinf(waited), 0, reference.log_survival(np.maximum(waited, -1e6)))
    left = np.minimum(left, 0)
    want = np.log1p(-shares) + left
    # The time is rounded; 1e-9 is what the bisection leaves. The weights sum to one but for 1e-7.
    around = 2e-9 + 4 * EPS * (np.abs(q) + np.abs(reference.means).max(-1))
    size = 1 + np.abs(want) + np.abs(reference.log_weights.max(-1))
    slack = 16 * EPS * size
    low, high = (reference.log_survival(q + sign * around) for sign in (1, -1))
    assert (low - slack <= want).all() and (want <= high + slack).all()
    # A small share is exact for its own size, which the survival does not show.
    small = np.isinf(waited) & (shares < 0.5)
    low, high = (reference.log_distribution(q + sign * around) for sign in (-1, 1))
    log_shares = np.broadcast_to(np.log(shares), q.shape)
    slack = 16 * EPS * (size + np.abs(log_shares))
    small = np.broadcast_to(small, q.shape)
    assert (low - slack <= log_shares)[small].all()
    assert (log_shares <= high + slack)[small].all()


@of_cases
def test_quantiles(own: LogNormalMixture) -> None:
    none = np.full((1, 9), -np.inf, np.float32)
    q = np.asarray(quantiles(own, SHARES[:, None], none), np.float64)
    assert q.shape == (len(SHARES), 9)
    assert_quantiles(own, q, SHARES[:, None], none)
    assert (np.diff(q, axis=0) >= 0).all()


@of_cases
def test_quantiles_after_waiting(own: LogNormalMixture) -> None:
    """However long: 30 stds beyond the middle of a component, where none may be left."""
    for waited in points(own)[::11]:
        waited = np.broadcast_to(waited[None], (1, 9))
        q = np.asarray(quantiles(own, SHARES[:, None], waited), np.float64)
        assert (q >= waited).all()
        assert_quantiles(own, q, SHARES[:, None], waited)


def test_a_quantile_of_the_distribution_is_the_time() -> None:
    """Where float32 tells shares apart: down to its smallest, and less near one."""
    own = CASES["one component"]
    z = np.linspace(-12, 3, 45)
    x = (own.means[:, 0] + z[:, None] * own.stds[:, 0]).astype(np.float32)
    shares = np.exp(told(own, x)["log_distribution"])
    back = np.asarray(quantiles(own, shares, np.full((1, 9), -np.inf, np.float32)), np.float64)
    # A share near 1 is rounded by 6e-8, which divided by the density is more of a deviation.
    upper = EPS * special.ndtr(z) / stats.norm.pdf(z) * (z > 0)
    room = (2e-5 + 2 * upper)[:, None] * own.stds[:, 0] + 8 * EPS * (np.abs(x) + 1)
    assert (np.abs(back - x) <= room).all()


def test_quantiles_of_a_number_of_an_array_and_of_the_default() -> None:
    own = CASES["eight components"]
    none = np.full(9, -np.inf, np.float32)
    alone = jax.jit(lambda own: own.log_quantile(0.25))(own)
    assert alone.shape == (9,)
    assert_same_bits(alone, quantiles(own, np.full(9, 0.25, np.float32), none))
    rows = np.linspace(0.1, 0.9, 9, dtype=np.float32)
    by_row = quantiles(own, rows, none)
    vmapped = jax.jit(jax.vmap(lambda own, share: own.log_quantile(share)))(own, rows)
    assert_same_bits(vmapped, by_row)


def test_a_quantile_is_a_constant_to_gradients() -> None:
    own = jax.tree.map(jnp.asarray, CASES["one component"])
    gradient = jax.jit(jax.grad(lambda own: own.log_quantile(0.3).sum()))(own)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


by = jax.jit(LogNormalMixture.probability_by)


@of_cases
def test_probability_by(own: LogNormalMixture) -> None:
    x, reference = points(own), Reference.of(own)
    wide = x.astype(np.float64)
    want = np.exp(np.minimum(reference.log_distribution(wide), 0))
    assert_close(by(own, x), want, "float32")
    waited = x[7::13, None].copy()  # [3, 1, rows]: times that have passed, none of some rows
    waited[2, :, 4:] = -1e4
    longest, passed = np.maximum(wide, waited), waited.astype(np.float64)
    left = reference.log_survival(longest) - reference.log_survival(passed)
    got = by(own, x, waited)
    assert np.all((got >= 0) & (got <= 1)) and not np.any(np.where(x <= waited, got, 0))
    # Relative to one: a difference of logs loses what these have of roundings.
    lost = 2 * np.maximum(reference.rounding(longest), reference.rounding(passed))
    assert (np.abs(got + np.expm1(np.minimum(left, 0))) <= lost).all()
    none = np.full_like(waited, -np.inf)
    assert_close(by(own, x, none), np.stack([want] * 3), "float32")


VALUES = ("log_density", "log_survival", "log_distribution", "log_hazard")


def summed(name: str, logits, means, stds, x):
    """Weights by a softmax, as models make them: their gradients are of weights that sum to one."""
    own = LogNormalMixture(jax.nn.log_softmax(logits), means, stds)
    return jnp.sum(getattr(own, name)(x))


@jax.jit
def gradients(*arguments):
    """Of each value of each time, into logits, means, stds and the time."""
    one = {name: jax.grad(lambda *a, n=name: summed(n, *a), (0, 1, 2, 3)) for name in VALUES}
    return jax.vmap(lambda *a: {name: f(*a) for name, f in one.items()}, (None, None, None, 0))(
        *arguments
    )


LOGITS, MEANS, DEVIATIONS = (
    np.float64([0.5, -1.0, 0.25]),
    np.float64([-1.0, 0.5, 2.0]),
    np.float64([0.25, 1.0, 0.5]),
)
Z = np.array([-30, -21, -20.5, -19.5, -12, -5, -1, 0, 1, 5, 12, 19.5, 20.5, 21, 30], np.float64)


def differences(name: str, x: np.ndarray, h: float = 1e-5) -> list[np.ndarray]:
    """Central ones, of the reference in float64."""

    def value(arguments: list[np.ndarray], x: np.ndarray) -> np.ndarray:
        logits, means, stds = arguments
        reference = Reference(special.log_softmax(logits), means, stds)
        if name == "log_hazard":
            return reference.log_density(x) - reference.log_survival(x)
        return getattr(reference, name)(x)

    base, found = [LOGITS, MEANS, DEVIATIONS], []
    for which in range(3):
        columns = []
        for component in range(3):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in base]
                moved[which][component] += sign * h
                ends.append(value(moved, x))
            columns.append((ends[0] - ends[1]) / (2 * h))
        found.append(np.stack(columns, axis=-1))
    return [*found, (value(base, x + h) - value(base, x - h)) / (2 * h)]


def test_gradients_far_out_are_those_of_differences() -> None:
    """In both tails of the widest component, and so further out in those of the others."""
    x = MEANS[1] + DEVIATIONS[1] * Z
    with jax.enable_x64(True):
        exact = jax.tree.map(np.asarray, gradients(LOGITS, MEANS, DEVIATIONS, x))
    narrow = gradients(*(a.astype(np.float32) for a in (LOGITS, MEANS, DEVIATIONS, x)))
    for name in VALUES:
        want = differences(name, x)
        for which, expected in enumerate(want):
            got, single = exact[name][which], narrow[name][which]
            assert got.dtype == np.float64 and single.dtype == np.float32
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6, err_msg=name)
            # exp(-z^2 / 2) of float32 has z^2 / 2 roundings, up to z = 20; and a hazard's gradient
            # is the difference of two others.
            size = np.abs(got)
            if name == "log_hazard":
                size = np.abs(exact["log_density"][which]) + np.abs(exact["log_survival"][which])
            assert (np.abs(single - got) <= 400 * EPS * size + 1e-6).all(), name


def test_gradients_beyond_all_tails_are_finite() -> None:
    """As of a gap unlike all others: a mistake of the data must not be the end of a run."""
    x = np.zeros_like(Z, np.float32)  # as many as above, for the same program
    x[:4], x[-4:] = [-1e6, -1e5, -3e4, -1e3], [1e3, 3e4, 1e5, 1e6]
    got = gradients(*(a.astype(np.float32) for a in (LOGITS, MEANS, DEVIATIONS)), x)
    for leaf in jax.tree.leaves(got):
        assert np.isfinite(leaf).all()
    # The widest component is all that counts; the hazard of a normal distribution is z.
    z = (x[-4:].astype(np.float64) - MEANS[1]) / DEVIATIONS[1]
    np.testing.assert_allclose(got["log_survival"][3][-4:], -z, rtol=1e-5)
    np.testing.assert_allclose(got["log_survival"][1][-4:, 1], z, rtol=1e-5)


def test_a_weight_of_nothing_has_no_gradient() -> None:
    logits = np.float32([0.0, -np.inf, 1.0])
    x = Z.astype(np.float32)
    got = gradients(logits, MEANS.astype(np.float32), DEVIATIONS.astype(np.float32), x)
    for name in VALUES:
        for leaf in got[name]:
            assert np.isfinite(leaf).all(), name
        for leaf in got[name][:3]:
            assert not np.any(leaf[:, 1]), name
