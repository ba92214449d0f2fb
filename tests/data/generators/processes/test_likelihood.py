"""Log likelihoods against rates that are integrated numerically, and what must hold of all."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from flax_linattn.data.generators.processes import (
    SIN,
    HawkesProcess,
    IndependentEventTypes,
    PoissonProcess,
    RenewalProcess,
    SinePoisson,
)
from tests.data.generators.processes import references
from tests.data.generators.processes.events import any_events, sequences, some_events

HAWKES = HawkesProcess([0.3, 0.1], [[0.4, 0.2], [0.7, 0.05]], decay=1.7)
EXPLOSIVE = HawkesProcess([0.01, 0.1], [[1.4, 0.2], [0.7, 1.05]], decay=0.3)
MIXTURE = ([0.3, 0.7], [-1.0, 1.0], [0.5, 0.8])
TWO_TYPES = {
    "poisson": PoissonProcess([0.5, 1.5]),
    "renewal": RenewalProcess(*MIXTURE, [0.9, 0.1], resolution=0.01),
    "hawkes": HAWKES,
    "explosive": EXPLOSIVE,
    "sine": IndependentEventTypes(SinePoisson(1.0, 0.8, period=7.0, phase=0.3), [0.2, 0.8]),
    "independent": IndependentEventTypes(HawkesProcess([0.2], [[0.6]], 2.0), [0.5, 0.5]),
}
ONE_TYPE = {
    "poisson": PoissonProcess([0.7]),
    "renewal": RenewalProcess(*MIXTURE, resolution=0.01),
    "hawkes": HawkesProcess([0.2], [[0.6]], 2.0),
    "sine": SinePoisson(2.0, -0.9, period=3.0, phase=1.0),
    "sin": SIN,
}
two_types = pytest.mark.parametrize("process", TWO_TYPES.values(), ids=TWO_TYPES)


def rows(likelihood):
    return np.stack(likelihood, axis=1)


def check(process, events):
    expected, integrals = references.log_likelihood(process, events)
    assert_allclose(rows(process.log_likelihood(events)), expected, rtol=1e-8, atol=1e-8)
    if not isinstance(process, RenewalProcess):  # whose gaps below the resolution are longer
        for own, other in zip(process.rescaled(events), integrals, strict=True):
            assert_allclose(own, other, rtol=1e-8, atol=1e-8)


@two_types
def test_is_the_integral_of_the_rate(process):
    """Where nothing is known but the rate: events given, begins unknown, ties, a rest."""
    check(process, some_events(2, ties=not isinstance(process, RenewalProcess)))


@pytest.mark.parametrize("process", ONE_TYPE.values(), ids=ONE_TYPE)
def test_is_the_integral_of_the_rate_of_one_event_type(process):
    check(process, some_events(1, ties=not isinstance(process, RenewalProcess)))


def test_of_hawkes_at_anything():
    @given(any_events())
    def agrees(events):
        check(HAWKES, events)

    agrees()


def test_renewal_integrates_its_hazard_exactly_above_the_resolution():
    process = RenewalProcess(*MIXTURE, [0.9, 0.1])
    events = some_events(2, ties=False)
    for own, other in zip(
        process.rescaled(events), references.log_likelihood(process, events)[1], strict=True
    ):
        assert_allclose(own, other, rtol=1e-8)


def test_a_gap_below_the_resolution_counts_as_it():
    process = RenewalProcess(*MIXTURE, resolution=0.5)
    short = process.log_likelihood(sequences([[1.0, 1.0, 1.25]], begin=[0.0]))
    long = process.log_likelihood(sequences([[1.0, 1.5, 2.0]], begin=[0.0]))
    assert_allclose(short.time, long.time, rtol=1e-14)


@two_types
def test_parts_sum_to_the_whole(process):
    @given(any_events(), st.integers(1, 4))
    def agrees(events, length):
        whole = rows(process.log_likelihood(events)).sum(axis=0)
        pieces = events.cut(length, history=1000)
        assert_allclose(
            rows(process.log_likelihood(pieces)).sum(axis=0), whole, rtol=1e-10, atol=1e-10
        )
        assert_allclose(
            np.concatenate(process.rescaled(pieces)),
            np.concatenate(process.rescaled(events)),
            rtol=1e-10,
            atol=1e-10,
        )

    agrees()


def in_units(process, c):
    """The same process, its time in units of 1 / c."""
    if isinstance(process, PoissonProcess):
        return PoissonProcess(process.rates / c)
    if isinstance(process, HawkesProcess):
        return HawkesProcess(process.base / c, process.excitation, process.decay / c)
    if isinstance(process, SinePoisson):
        return SinePoisson(process.mean / c, process.amplitude, process.period * c, process.phase)
    if isinstance(process, IndependentEventTypes):
        return IndependentEventTypes(in_units(process.process, c), process.type_probabilities)
    return RenewalProcess(
        process.weights,
        process.means + np.log(c),
        process.deviations,
        process.type_probabilities,
        resolution=process.resolution * c,
    )


@two_types
@pytest.mark.parametrize("c", [1 / 3600, 86400.0])
def test_another_unit_of_time_shifts_by_its_logarithm(process, c):
    events = some_events(2)
    scaled = dataclasses.replace(
        events,
        times=tuple(own * c for own in events.times),
        begin=events.begin * c,
        end=events.end * c,
    )
    numbers = [len(gaps) for gaps in events.gaps()]
    before, after = process.log_likelihood(events), in_units(process, c).log_likelihood(scaled)
    assert_allclose(after.time, before.time - np.array(numbers) * np.log(c), rtol=1e-9, atol=1e-9)
    assert_allclose(after.event_type, before.event_type, rtol=1e-9)
    assert_allclose(after.survival, before.survival, rtol=1e-9)


def test_events_at_one_time_excite_those_behind():
    """By hand: the second of two at 1.0 sees the first one's whole kernel."""
    process = HawkesProcess([0.5], [[0.4]], decay=2.0)
    got = process.log_likelihood(sequences([[1.0, 1.0]], begin=[0.0], end=[1.0]))
    assert_allclose(got.time, [np.log(0.5) - 0.5 + np.log(0.5 + 0.4 * 2.0)], rtol=1e-14)
    assert_allclose(got.survival, [0.0])


def test_nothing_before_the_begin_excites_and_history_does():
    process = HawkesProcess([0.5], [[0.4]], decay=2.0)
    alone = process.log_likelihood(sequences([[1.0]], begin=[0.0]))
    assert_allclose(alone.time, [np.log(0.5) - 0.5], rtol=1e-14)
    behind = process.log_likelihood(sequences([[0.0, 1.0]], begin=[0.0], given=[1]))
    kernel = np.exp(-2.0)
    assert_allclose(
        behind.time, [np.log(0.5 + 0.8 * kernel) - 0.5 - 0.4 * (1 - kernel)], rtol=1e-14
    )


@two_types
def test_sequences_of_given_events_alone_have_a_survival(process):
    events = sequences([[1.0, 2.0]], [[0, 1]], 2, given=[2], end=[3.0])
    got = process.log_likelihood(events)
    assert got.time.tolist() == got.event_type.tolist() == [0.0]
    assert got.survival[0] < 0
    assert [own.size for own in process.rescaled(events)] == [0]


def test_what_cannot_be_has_no_probability():
    events = sequences([[1.0]], [[1]], 2, begin=[0.0])
    for process in (
        PoissonProcess([1.0, 0.0]),
        HawkesProcess([1.0, 0.0], np.zeros((2, 2)), 1.0),
        RenewalProcess([1.0], [0.0], [1.0], [1.0, 0.0]),
        IndependentEventTypes(PoissonProcess([1.0]), [1.0, 0.0]),
    ):
        got = process.log_likelihood(events)
        assert got.event_type[0] == -np.inf
        assert np.isfinite(got.time[0])


def test_long_silence_keeps_its_digits():
    """1e6 deviations out, where a density of 0 divided by 0 would be NaN."""
    process = RenewalProcess([1.0], [0.0], [0.01])
    got = process.log_likelihood(sequences([[1.0]], begin=[0.0], end=[1e9]))
    z = np.log(1e9 - 1) / 0.01
    # log of the tail of the normal distribution, by its asymptotic series.
    tail = -z * z / 2 - np.log(z * np.sqrt(2 * np.pi)) + np.log1p(-1 / z**2 + 3 / z**4)
    assert_allclose(got.survival, [tail], rtol=1e-14)
    hawkes = HawkesProcess([1e-12], [[0.5]], 1.0)
    assert np.isfinite(hawkes.log_likelihood(sequences([[1.0, 1e12]], begin=[0.0])).total).all()


def test_the_integral_of_a_short_gap_keeps_its_digits():
    process = SinePoisson(1.0, 0.5, period=10.0)
    times = np.array([1e6 + 0.25, 1e6 + 0.25 + 2.0**-20])
    (own,) = process.rescaled(sequences([times], begin=[1e6]))
    assert_allclose(own[1], process.rate(times[1] - 2.0**-21) * 2.0**-20, rtol=1e-9)
