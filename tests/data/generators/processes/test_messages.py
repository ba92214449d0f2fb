"""What is refused, and what is said."""

import re

import numpy as np
import pytest

from flax_linattn.checks import OptionError
from flax_linattn.data.generators.processes import (
    MAX_EVENT_TYPES,
    HawkesProcess,
    IndependentEventTypes,
    PoissonProcess,
    RenewalProcess,
    SinePoisson,
    event_type_frequencies,
)
from flax_linattn.data.generators.processes import (
    process as process_module,
)
from tests.data.generators.processes.events import sequences

ONE = ([1.0], [0.0], [1.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonProcess([]), "rates must be one rate for each event type"),
        (lambda: PoissonProcess([0.0, 0.0]), "none below 0 and some above, got [0.0, 0.0]"),
        (lambda: PoissonProcess([1.0, -1.0]), "none below 0 and some above, got [1.0, -1.0]"),
        (lambda: PoissonProcess([np.nan]), "none below 0 and some above, got [nan]"),
        (lambda: PoissonProcess([[1.0]]), "got [[1.0]]"),
        (lambda: HawkesProcess([0.0], [[0.5]], 1.0), "base must be one rate"),
        (lambda: HawkesProcess([1.0], [0.5], 1.0), "excitation must be [1, 1], as there are 1"),
        (lambda: HawkesProcess([1.0], [[-0.5]], 1.0), "of numbers not below 0, got [[-0.5]]"),
        (lambda: HawkesProcess([1.0], [[np.inf]], 1.0), "got [[inf]]"),
        (lambda: HawkesProcess([1.0], [[0.5]], 0.0), "decay must be positive, got 0.0"),
        (lambda: HawkesProcess([1.0], [[0.5]], np.nan), "decay must be positive, got nan"),
        (lambda: HawkesProcess([1.0], [[0.5]], np.inf), "decay must be finite, got inf"),
        (lambda: RenewalProcess([0.5], [0.0], [1.0]), "weights must be one or more probabilities"),
        (lambda: RenewalProcess([1.0], [0.0, 1.0], [1.0]), "1 of weights, 2 of means"),
        (lambda: RenewalProcess([1.0], [np.nan], [1.0]), "means must be a finite number of each"),
        (lambda: RenewalProcess([1.0], [0.0], [0.0]), "deviations must be positive, got 0.0"),
        (lambda: RenewalProcess([1.0], [[0.0]], [1.0]), "got [[0.0]]"),
        (lambda: RenewalProcess(*ONE, [0.5, 0.6]), "type_probabilities must be one or more"),
        (lambda: RenewalProcess(*ONE, resolution=0.0), "resolution must be positive, got 0.0"),
        (lambda: RenewalProcess(*ONE, resolution=np.inf), "resolution must be finite, got inf"),
        (lambda: SinePoisson(0.0, 0.5, 1.0), "mean must be positive, got 0.0"),
        (lambda: SinePoisson(1.0, 1.5, 1.0), "amplitude must be from -1 to 1, got 1.5"),
        (lambda: SinePoisson(1.0, np.nan, 1.0), "amplitude must be from -1 to 1, got nan"),
        (lambda: SinePoisson(1.0, 0.5, -1.0), "period must be positive, got -1.0"),
        (lambda: SinePoisson(1.0, 0.5, 1.0, np.inf), "phase must be finite, got inf"),
        (lambda: SinePoisson(np.inf, 0.5, 1.0), "mean must be finite, got inf"),
        (
            lambda: IndependentEventTypes(PoissonProcess([1.0, 1.0]), [1.0]),
            "process must have one event type, got 2",
        ),
        (
            lambda: IndependentEventTypes(PoissonProcess([1.0]), [np.nan, 1.0]),
            "type_probabilities must be one or more probabilities, of sum 1, got [nan, 1.0]",
        ),
    ],
)
def test_parameters(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


PROCESSES = {
    "poisson": PoissonProcess([1.0]),
    "renewal": RenewalProcess(*ONE, resolution=0.1),
    "hawkes": HawkesProcess([1.0], [[0.5]], 1.0),
    "sine": SinePoisson(1.0, 0.5, 10.0),
    "independent": IndependentEventTypes(SinePoisson(1.0, 0.5, 10.0), [1.0]),
}
every = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


@every
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_sequences": 0}, "num_sequences must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"end": 0.0}, "end must be a time after begin, got 0.0 to 0.0"),
        ({"end": np.inf}, "end must be a time after begin, got 0.0 to inf"),
        ({"begin": np.nan}, "end must be a time after begin, got nan to 10.0"),
    ],
)
def test_samples(process, arguments, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        process.sample(**{"num_sequences": 2, "end": 10.0, "begin": 0.0, "seed": 0} | arguments)


@every
def test_too_many_events(process, monkeypatch):
    monkeypatch.setattr(process_module, "MAX_EVENTS", 1000)
    with pytest.raises(
        OptionError, match=r"at most 1,000 events can be sampled at once, but \d,\d+"
    ):
        process.sample(2, end=1e3, seed=0)


@every
def test_other_event_types(process):
    events = sequences([[1.0]], [[1]], 2, begin=[0.0])
    for ask in (process.log_likelihood, process.rescaled):
        with pytest.raises(
            ValueError, match=r"as many event types as the process has, 1, got 2; convert"
        ):
            ask(events)


def test_explosions():
    with pytest.raises(OptionError, match=r"spectral radius below 1 for sampling, got 1\.2"):
        HawkesProcess([1.0], [[1.2]], 1.0).sample(1, end=10.0, seed=0)


def test_gaps_of_zero():
    events = sequences([[1.0, 1.0]], begin=[0.0])
    for ask in (RenewalProcess(*ONE).log_likelihood, RenewalProcess(*ONE).rescaled):
        with pytest.raises(ValueError, match=r"1 of 2 are 0, where .* give a resolution"):
            ask(events)


@pytest.mark.parametrize("fit", [PoissonProcess.fit, RenewalProcess.fit, HawkesProcess.fit])
def test_nothing_to_fit_to(fit):
    with pytest.raises(ValueError, match="no sequence has any; pass longer sequences"):
        fit(sequences([[1.0], [2.0]]))
    with pytest.raises(ValueError, match="test: expected events over some time, but all gaps"):
        fit(sequences([[1.0, 1.0]]))


def test_gaps_of_zero_alone():
    with pytest.raises(ValueError, match="expected some gap above 0 before a forecast event"):
        RenewalProcess.fit(sequences([[1.0, 1.0]], end=[2.0]))
    assert HawkesProcess.fit(sequences([[1.0, 1.0]], end=[2.0])).decay == 1.0


def test_fits_refuse_what_is_out_of_range():
    events = sequences([[1.0, 2.0]])
    for arguments, message in (
        ({"num_components": 0}, "num_components must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"resolution": 0.0}, "resolution must be positive"),
        ({"resolution": np.inf}, "resolution must be finite"),
    ):
        with pytest.raises(OptionError, match=message):
            RenewalProcess.fit(events, **arguments)
    with pytest.raises(OptionError, match="max_iterations must be at least 1"):
        HawkesProcess.fit(events, max_iterations=0)
    with pytest.raises(OptionError, match="resolution must be positive"):
        HawkesProcess.fit(events, resolution=-1.0)


def test_too_many_event_types():
    many = MAX_EVENT_TYPES + 1
    events = sequences([[1.0, 2.0]], [[0, 1]], many)
    with pytest.raises(
        ValueError, match=r"at most 100 event types, .* got 101; IndependentEventTypes\.fit"
    ):
        HawkesProcess.fit(events)
    fitted = IndependentEventTypes.fit(events, HawkesProcess.fit)
    assert fitted.num_event_types == many
    np.testing.assert_allclose(event_type_frequencies(events).sum(), 1.0)
