"""Fits: exact gradients, the truth recovered, and no likelihood without bound."""

import dataclasses
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from flax_linattn.data.events import EventSequences
from flax_linattn.data.generators.processes import (
    HawkesProcess,
    IndependentEventTypes,
    PoissonProcess,
    RenewalProcess,
    event_type_frequencies,
)
from flax_linattn.data.generators.processes.flat import in_steps
from flax_linattn.data.generators.processes.hawkes_fit import Search, log_likelihood_and_gradient
from flax_linattn.data.generators.processes.renewal import (
    FLOOR,
    em_step,
    fit_mixture,
    log_density,
    log_survival,
)
from tests.data.generators.processes.events import any_events, sequences, some_events

HAWKES = HawkesProcess([0.5, 0.2], [[0.3, 0.6], [0.2, 0.1]], decay=1.5)


def numbers(process):
    return np.concatenate([process.base, process.excitation.ravel(), [process.decay]])


def test_gradient_of_hawkes():
    """Against the likelihood of the process, and its central differences."""
    x = np.array([0.3, 0.1, 0.4, 0.2, 0.7, 0.05, 1.7])

    def process_of(x):
        return HawkesProcess(x[:2], x[2:6].reshape(2, 2), x[6])

    @given(any_events())
    def agrees(events):
        found = log_likelihood_and_gradient(in_steps(events), x[:2], x[2:6].reshape(2, 2), x[6])
        assert_allclose(
            found.value, process_of(x).log_likelihood(events).total.sum(), rtol=1e-10, atol=1e-10
        )
        gradient = np.concatenate([found.base, found.excitation.ravel(), [found.decay]])
        step = 1e-5
        differences = [
            (
                process_of(x + step * unit).log_likelihood(events).total.sum()
                - process_of(x - step * unit).log_likelihood(events).total.sum()
            )
            / (2 * step)
            for unit in np.eye(len(x))
        ]
        assert_allclose(gradient, differences, rtol=1e-6, atol=1e-6)

    agrees()


def test_gradient_of_the_search():
    """Through its square roots and units, one event more of each type included."""
    search = Search(some_events(2), bounds=(0.01, 100.0))
    x = np.array([0.5, 0.3, 0.4, 0.2, 0.7, 0.1, 0.2])
    _, gradient = search.minimized(x)
    differences = [
        (search.minimized(x + 1e-6 * unit)[0] - search.minimized(x - 1e-6 * unit)[0]) / 2e-6
        for unit in np.eye(len(x))
    ]
    assert_allclose(gradient, differences, rtol=1e-6, atol=1e-8)


def test_hawkes_is_recovered():
    """Twice the gain of the fit over the truth is of a chi square of the 7 parameters."""
    events = HAWKES.sample(200, end=50.0, seed=0)
    fitted = HawkesProcess.fit(events)
    gain = 2 * (fitted.log_likelihood(events).total - HAWKES.log_likelihood(events).total).sum()
    assert 0 < gain < stats.chi2.ppf(0.999, 7)
    assert_allclose(numbers(fitted), numbers(HAWKES), rtol=0.15, atol=0.03)


def test_hawkes_is_recovered_from_pieces_with_history():
    """Given events excite, and the time up to the last of them does not count."""
    events = HAWKES.sample(20, end=25.0, seed=0)
    whole = HawkesProcess.fit(events, resolution=0.01)
    pieces = HawkesProcess.fit(events.cut(10, history=1000), resolution=0.01)
    assert_allclose(numbers(pieces), numbers(whole), rtol=0.01, atol=1e-3)


def test_hawkes_does_not_depend_on_the_unit_of_time():
    events = HAWKES.sample(20, end=25.0, seed=0)
    slow = dataclasses.replace(
        events,
        times=tuple(own * 86400 for own in events.times),
        begin=events.begin * 86400,
        end=events.end * 86400,
    )
    one, other = HawkesProcess.fit(events), HawkesProcess.fit(slow)
    assert_allclose(other.base * 86400, one.base, rtol=1e-3)
    assert_allclose(other.excitation, one.excitation, rtol=1e-3, atol=1e-3)
    assert_allclose(other.decay * 86400, one.decay, rtol=1e-3)


def test_hawkes_of_a_poisson_process_excites_little():
    events = PoissonProcess([1.0]).sample(200, end=25.0, seed=0)
    fitted = HawkesProcess.fit(events)
    gain = (
        fitted.log_likelihood(events).total
        - PoissonProcess.fit(events).log_likelihood(events).total
    )
    assert gain.sum() < stats.chi2.ppf(0.999, 2) / 2


def test_hawkes_of_ties_stays_within_its_bounds():
    """Twins at one time: the faster the decay, the larger the likelihood."""
    times = np.repeat(np.arange(1.0, 51.0), 2)
    events = sequences([times], begin=[0.0])
    fitted = HawkesProcess.fit(events, resolution=0.1)
    assert_allclose(fitted.decay, 10.0)
    assert np.isfinite(fitted.log_likelihood(events).total).all()
    assert HawkesProcess.fit(events).decay <= 1.0  # 1 / the smallest gap above 0


def test_hawkes_of_event_types_that_do_not_occur():
    events = sequences([[1.0, 2.0, 4.0, 4.5]], [[0, 0, 2, 0]], 4, begin=[0.0])
    fitted = HawkesProcess.fit(events)
    assert (fitted.base > 0).all()
    assert fitted.excitation[:, [1, 3]].tolist() == [[0.0, 0.0]] * 4
    assert np.isfinite(fitted.log_likelihood(events).total).all()


def test_poisson_by_hand():
    events = sequences(
        [[1.0, 2.0, 4.0], [7.0, 8.0]], [[0, 1, 1], [0, 1]], 3, begin=[0.0, np.nan], end=[5.0, 10.0]
    )
    # 3 + 1 forecast events in 5 + 3 units of time: 1 and 3 of the types, one more of each counted.
    assert_allclose(event_type_frequencies(events), [2 / 7, 4 / 7, 1 / 7], rtol=1e-15)
    assert_allclose(PoissonProcess.fit(events).rates, [1 / 7, 2 / 7, 1 / 14], rtol=1e-15)
    given = dataclasses.replace(events, given=np.array([2, 1]))
    assert_allclose(PoissonProcess.fit(given).rate, 2 / (3.0 + 3.0), rtol=1e-15)


def test_renewal_is_recovered():
    true = RenewalProcess([0.3, 0.7], [-2.0, 0.5], [0.4, 0.6], [0.8, 0.2])
    events = true.sample(20, end=500.0, seed=0)
    fitted = RenewalProcess.fit(events, num_components=2)
    order = np.argsort(fitted.means)
    assert_allclose(fitted.weights[order], true.weights, atol=0.02)
    assert_allclose(fitted.means[order], true.means, atol=0.03)
    assert_allclose(fitted.deviations[order], true.deviations, atol=0.03)
    assert_allclose(fitted.type_probabilities, true.type_probabilities, atol=0.02)
    gain = 2 * (fitted.log_likelihood(events).time - true.log_likelihood(events).time).sum()
    assert 0 < gain < stats.chi2.ppf(0.999, 5)


def test_independent_event_types_are_fitted_apart():
    true = IndependentEventTypes(HawkesProcess([0.5], [[0.5]], 2.0), [0.3, 0.7])
    events = true.sample(20, end=100.0, seed=0)
    fitted = IndependentEventTypes.fit(events, HawkesProcess.fit)
    assert_allclose(fitted.type_probabilities, event_type_frequencies(events))
    assert_allclose(numbers(fitted.process), [0.5, 0.5, 2.0], rtol=0.2)


def test_density_and_survival_of_mixtures():
    values = np.array([1e-8, 0.1, 1.0, 2.5, 40.0])
    mixture = np.array([0.2, 0.8]), np.array([-1.0, 2.0]), np.array([0.5, 1.5])
    weights, means, deviations = mixture
    parts = [
        stats.lognorm(deviation, scale=np.exp(mean))
        for mean, deviation in zip(means, deviations, strict=True)
    ]
    density = weights @ np.array([part.pdf(values) for part in parts])
    survival = weights @ np.array([part.sf(values) for part in parts])
    assert_allclose(log_density(values, mixture), np.log(density), rtol=1e-10)
    # A survival near 1 has the digits of 1, here and there.
    assert_allclose(log_survival(values, mixture), np.log(survival), rtol=1e-10, atol=1e-15)
    assert log_survival(np.zeros(1), mixture).tolist() == [0.0]


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_expectation_maximization_never_loses(seed, K):
    rng = np.random.default_rng(seed)
    x, counts = np.unique(rng.normal(size=30).round(1), return_counts=True)
    weights = rng.dirichlet(np.ones(K))
    mixture = weights, rng.normal(size=K), rng.uniform(0.1, 2, K)
    before = -np.inf
    for _ in range(10):
        mixture, reached = em_step(x, counts, mixture, floor=0.1)
        assert reached >= before - 1e-12
        assert mixture[2].min() >= 0.1
        before = reached


def test_gaps_that_repeat_have_no_infinite_density():
    values = np.array([1.0] * 50 + [2.0] * 30 + [3.5, 4.5, 9.0])
    _, _, deviations = fit_mixture(values, 4, seed=0)
    floor = FLOOR * np.log(values).std()
    assert_allclose(deviations.min(), floor)
    weights, means, deviations = fit_mixture(np.full(10, 3.0), 3, seed=0)
    assert_allclose(means, np.log(3.0))
    assert_allclose(deviations, FLOOR)
    assert_allclose(weights.sum(), 1.0)


def test_many_values_are_followed_on_all():
    """More than the 20,000 on which starts are compared."""
    logs = np.random.default_rng(0).normal(0.5, 0.25, 30_000)
    weights, means, deviations = fit_mixture(np.exp(logs), 1, seed=0)
    assert_allclose(weights, [1.0])
    assert_allclose(means, [logs.mean()], rtol=1e-12)
    assert_allclose(deviations, [logs.std()], rtol=1e-12)


def stackoverflow(folder, fold):
    """The test part of a fold of StackOverflow: badges of 22 kinds, in seconds."""

    def lines(kind):
        with gzip.open(folder / "stackoverflow" / f"{kind}-{fold}-test.txt.gz", "rt") as file:
            return [np.array(line.split(), np.float64) for line in file]

    types = tuple((own - 1).astype(np.int32) for own in lines("event"))
    names = tuple(str(event_type) for event_type in range(1, 23))
    return EventSequences("StackOverflow", tuple(lines("time")), types, names)


@pytest.mark.slow
def test_processes_of_badges(data_dir):
    """Fitted to one part, each knows another better than what it generalises."""
    fitted, other = stackoverflow(data_dir, 1).select(range(150)), stackoverflow(data_dir, 2)
    likelihoods = {
        process: process.log_likelihood(other)
        for process in (
            PoissonProcess.fit(fitted),
            RenewalProcess.fit(fitted),
            HawkesProcess.fit(fitted),
        )
    }
    poisson, renewal, hawkes = likelihoods.values()
    assert poisson.time.sum() < renewal.time.sum() < hawkes.time.sum()
    assert_allclose(poisson.event_type, renewal.event_type, rtol=1e-12)
    assert hawkes.event_type.sum() > 0.95 * poisson.event_type.sum()
