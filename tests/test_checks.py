"""An error carries the options it is about, wherever it goes."""

import pickle

import pytest

from flax_linattn import checks


def test_an_option_error_keeps_its_options_between_processes():
    error = pickle.loads(pickle.dumps(checks.OptionError("too few.", "batch_size", "mesh")))
    assert (str(error), error.options) == ("too few.", ("batch_size", "mesh"))


@pytest.mark.parametrize(
    ("check", "values"),
    [(lambda **x: checks.at_least(1, **x), (2, 0)), (checks.positive, (1.0, 0.0)),
     (checks.rate, (0.5, 1.0))],
    ids=["at_least", "positive", "rate"],
)  # fmt: skip
def test_checks_name_the_option(check, values):
    good, bad = values
    with pytest.raises(ValueError, match=r"^second must be") as caught:
        check(first=good, second=bad)
    assert caught.value.options == ("second",)
