"""An error carries the options it is about, wherever it goes."""

import pickle

import pytest

from flax_linattn import checks, ops


def test_an_option_error_keeps_its_options_between_processes():
    error = checks.OptionError("too few.", "batch_size", "mesh", mesh="data=4", causal=False)
    error = pickle.loads(pickle.dumps(error))
    assert (str(error), error.options) == ("too few.", ("batch_size", "mesh", "causal"))
    assert error.values == {"mesh": "data=4", "causal": False}


@pytest.mark.parametrize(
    ("check", "values"),
    [(lambda **x: checks.check_integers(1, **x), (2, 0)), (checks.check_positive, (1.0, 0.0)),
     (checks.check_rate, (0.5, 1.0))],
    ids=["integers", "positive", "rate"],
)  # fmt: skip
def test_checks_name_the_option(check, values):
    good, bad = values
    with pytest.raises(ValueError, match=r"^second must be") as caught:
        check(first=good, second=bad)
    assert caught.value.options == ("second",)


@pytest.mark.parametrize(
    ("value", "error"),
    [(-(10**5000), ValueError), (10**5000, ValueError), ("9" * 5000, TypeError)],
    ids=["far below", "far above", "a long text"],
)
def test_what_is_no_such_number_is_told_in_a_line(value, error):
    """Not by Python's own words on numbers of thousands of digits, nor at full length."""
    with pytest.raises(error, match=r"^second must be ") as caught:
        checks.check_integers(1, first=1, second=value)
    assert len(str(caught.value)) < 100


def test_a_seed_has_its_own_bound():
    """NumPy's are as long as 128 bits; those of older runs are read."""
    assert ops.get_mechanism("performer", seed=2**32).seed == 2**32
    with pytest.raises(ValueError, match="seed must be at most"):
        ops.get_mechanism("linformer", seed=2**128)


@pytest.mark.parametrize(
    ("value", "text"),
    [("abc", "'abc'"), ("abcd", "'abc...'"), ([1, 2], "[1,..."), (OSError(), "OSE..."),
     (-(10**5000), "a v...")],
    ids=["short", "text", "list", "error", "number"],
)  # fmt: skip
def test_a_value_of_a_message_is_cut_where_it_is_long(value, text):
    assert checks.quote(value, 3) == text


def test_names_of_a_message_are_cut_and_counted():
    assert checks.itemize(["a" * 81, "b", "c"], 2) == f"{'a' * 80}..., b and 1 more"
