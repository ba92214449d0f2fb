"""What is drawn against theory: numbers of events, times and event types."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, linalg, stats

from flax_linattn.data.generators.processes import (
    SIN,
    SIN_END,
    HawkesProcess,
    IndependentEventTypes,
    PoissonProcess,
    RenewalProcess,
    SinePoisson,
)

HAWKES = HawkesProcess([0.5, 0.2], [[0.3, 0.6], [0.2, 0.1]], decay=1.5)
PROCESSES = {
    "poisson": PoissonProcess([0.5, 0.0, 1.5]),
    "renewal": RenewalProcess([0.3, 0.7], [-1.0, 0.5], [0.5, 0.8], [0.9, 0.1]),
    "hawkes": HAWKES,
    "near critical": HawkesProcess([0.1], [[0.9]], decay=1.0),
    "sine": SinePoisson(2.0, 0.9, period=7.0, phase=1.0),
    "independent": IndependentEventTypes(HawkesProcess([0.5], [[0.5]], 2.0), [0.3, 0.7]),
}
every = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)

LEAST = 1e-3
"""Of the probability of what is drawn. Seeds are fixed, so a test that passes goes on passing."""


@every
def test_rescaled_gaps_are_exponential(process):
    """The time rescaling theorem, of the first events of one long sequence."""
    (rescaled,) = process.rescaled(process.sample(1, end=6000.0, seed=1))
    assert rescaled.size > 3000
    first = rescaled[:3000]  # what the end cuts off is short of long gaps
    assert stats.kstest(first, "expon").pvalue > LEAST
    # They are independent, too: neighbors are uncorrelated.
    ranks = stats.spearmanr(first[:-1], first[1:])
    assert ranks.pvalue > LEAST


def test_the_theorem_finds_another_process_out():
    events = HAWKES.sample(1, end=6000.0, seed=1)
    other = HawkesProcess(HAWKES.base, HAWKES.excitation, decay=1.0)
    assert stats.kstest(other.rescaled(events)[0], "expon").pvalue < 1e-6


def z_score(values, mean):
    values = np.asarray(values, np.float64)
    return (values.mean() - mean) / (values.std(ddof=1) / np.sqrt(len(values)))


def counts(events):
    """Events of each sequence and event type, [N, M]."""
    M = len(events.event_type_names)
    return np.array([np.bincount(own, minlength=M) for own in events.event_types])


def test_numbers_of_poisson():
    process = PROCESSES["poisson"]
    events = process.sample(4000, begin=10.0, end=20.0, seed=0)
    own = counts(events)
    assert own[:, 1].sum() == 0
    for event_type in (0, 2):
        assert abs(z_score(own[:, event_type], process.rates[event_type] * 10)) < 3
    # Variance is the mean: of the sum of squares of 4,000, with its deviation.
    total = own.sum(axis=1)
    assert abs(z_score((total - 20.0) ** 2, 20.0)) < 3
    assert stats.kstest(np.concatenate(events.times), "uniform", (10.0, 10.0)).pvalue > LEAST


def test_numbers_of_hawkes_from_an_empty_past():
    """The mean rate follows dr/dt = decay * (base - (1 - excitation) r), from r = base at first."""
    T = 8.0
    matrix = HAWKES.decay * (np.eye(2) - HAWKES.excitation)
    steady = np.linalg.solve(np.eye(2) - HAWKES.excitation, HAWKES.base)

    def mean_rate(t):
        return steady + linalg.expm(-matrix * t) @ (HAWKES.base - steady)

    own = counts(HAWKES.sample(6000, begin=-3.0, end=T - 3.0, seed=0))
    # A sequence without events is drawn again.
    drawn = 1 - np.exp(-HAWKES.base.sum() * T)
    for event_type in (0, 1):
        mean, _ = integrate.quad(lambda t, event_type=event_type: mean_rate(t)[event_type], 0, T)
        assert abs(z_score(own[:, event_type], mean / drawn)) < 3


def test_sequences_without_events_are_drawn_again():
    events = PoissonProcess([0.5]).sample(4000, end=1.0, seed=0)
    numbers = [len(times) for times in events.times]
    assert min(numbers) == 1
    assert abs(z_score(numbers, 0.5 / -np.expm1(-0.5))) < 3


@pytest.mark.parametrize("process", [PROCESSES["sine"], SIN], ids=["sine", "sin"])
def test_times_of_sine(process):
    begin, end = 1.0, 6.0
    events = process.sample(3000, begin=begin, end=end, seed=0)
    mean = process.integral(np.array(begin), np.array(end))
    by_quadrature, _ = integrate.quad(lambda t: float(process.rate(np.array(t))), begin, end)
    assert_allclose(mean, by_quadrature, rtol=1e-10)
    assert abs(z_score([len(times) for times in events.times], mean / -np.expm1(-mean))) < 3

    def distribution(times):
        return process.integral(np.full_like(times, begin), times) / mean

    assert stats.kstest(np.concatenate(events.times), distribution).pvalue > LEAST


def test_sin_has_about_100_events():
    numbers = [len(times) for times in SIN.sample(500, end=SIN_END, seed=0).times]
    assert abs(z_score(numbers, 32 * np.pi)) < 3


def test_gaps_of_renewal():
    process = PROCESSES["renewal"]
    events = process.sample(3000, begin=5.0, end=1000.0, seed=0)

    def distribution(gaps):
        parts = [
            weight * stats.lognorm.cdf(gaps, deviation, scale=np.exp(mean))
            for weight, mean, deviation in zip(
                process.weights, process.means, process.deviations, strict=True
            )
        ]
        return np.sum(parts, axis=0)

    for place in (0, 1, 300):
        gaps = [own[place] for own in events.gaps()]
        assert stats.kstest(gaps, distribution).pvalue > LEAST


@pytest.mark.parametrize("name", ["renewal", "independent"])
def test_event_types_have_their_probabilities(name):
    process = PROCESSES[name]
    own = counts(process.sample(200, end=100.0, seed=0)).sum(axis=0)
    expected = process.type_probabilities * own.sum()
    assert stats.chisquare(own, expected).pvalue > LEAST


@every
def test_a_seed_draws_the_same_and_another_does_not(process):
    first, again, other = (process.sample(3, end=40.0, seed=seed) for seed in (5, 5, 6))
    for name in ("times", "event_types"):
        for own, same in zip(getattr(first, name), getattr(again, name), strict=True):
            assert own.tobytes() == same.tobytes()
    assert first.times[0].tolist() != other.times[0].tolist()
    assert first.times[0].tolist() != first.times[1].tolist()
    assert first.event_types[0].dtype == np.int32
    assert first.begins.tolist() == [0.0] * 3
    assert first.ends.tolist() == [40.0] * 3


def test_times_stay_within_their_bounds():
    """At times of dates, where the next number is 2e-7 further on."""
    begin = 1.7e9
    for process in PROCESSES.values():
        events = process.sample(20, begin=begin, end=begin + 5.0, seed=0)
        assert min(times[0] for times in events.times) >= begin
        assert max(times[-1] for times in events.times) <= begin + 5.0


def test_drawn_events_have_the_largest_likelihood_where_they_are_from():
    """The mean log likelihood is larger under the true process than under its neighbors."""
    events = HAWKES.sample(200, end=50.0, seed=0)
    true = HAWKES.log_likelihood(events)
    for other in (
        HawkesProcess(HAWKES.base * 1.2, HAWKES.excitation, HAWKES.decay),
        HawkesProcess(HAWKES.base, HAWKES.excitation.T, HAWKES.decay),
        HawkesProcess(HAWKES.base, HAWKES.excitation, HAWKES.decay * 0.8),
    ):
        gain = true.total - other.log_likelihood(events).total
        assert gain.mean() > 2 * gain.std() / np.sqrt(len(gain))


def test_what_never_ends_is_not_drawn():
    with pytest.raises(ValueError, match=r"had none in 1,000 samples from 0 to 1; choose a later"):
        PoissonProcess([1e-9]).sample(2, end=1.0, seed=0)
