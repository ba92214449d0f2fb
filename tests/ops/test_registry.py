"""The registry: names, hyperparameters, and what is said when they are wrong."""

import dataclasses

import pytest

from flax_linattn import ops


def test_names_make_mechanisms() -> None:
    names = ops.list_mechanisms()
    assert len(set(names)) == len(names)
    assert names[:7] == (
        "softmax",
        "aaren",
        "elementwise",
        "elementwise_series",
        "taylorshift",
        "expressive",
        "expressive_quadratic",
    )
    for name in names:
        mechanism = ops.get_mechanism(name)
        assert mechanism.name == name
        assert mechanism == ops.get_mechanism(name)
        assert hash(mechanism) == hash(ops.get_mechanism(name))
        with pytest.raises(dataclasses.FrozenInstanceError):
            mechanism.name = "other"


def test_hyperparameters_make_other_mechanisms() -> None:
    assert ops.get_mechanism("aaren", chunk_size=7).chunk_size == 7
    assert ops.get_mechanism("aaren", chunk_size=7) != ops.get_mechanism("aaren")


def test_hyperparameters_after_a_colon() -> None:
    for spec, mechanism in {
        "elementwise_series:order=2,chunk_size=4": ops.ElementwiseSeries(order=2, chunk_size=4),
        "taylorshift:switch=memory,normalize=False": ops.TaylorShift(
            switch="memory", normalize=False
        ),
        "taylorshift:coefficients=(1, 1, 1)": ops.TaylorShift(coefficients=(1, 1, 1)),
        "softmax:implementation=None": ops.get_mechanism("softmax"),
    }.items():
        assert ops.get_mechanism(spec) == mechanism
    assert ops.get_mechanism("aaren:chunk_size=4", chunk_size=8).chunk_size == 8
    with pytest.raises(TypeError, match="'aaren' has no hyperparameter 'order'; it has: chunk"):
        ops.get_mechanism("aaren:order=2")
    for spec, message in {
        "elementwise_series:order=two": "'elementwise_series' expects order as int, got 'two'",
        "elementwise_series:terms=1.5": "expects terms as int or None, got 1.5",
        "aaren:chunk_size=True": "expects chunk_size as int, got True",
        "aaren:scale=large": "expects scale as float or None, got 'large'",
        "taylorshift:coefficients=1": "expects coefficients as tuple, got 1",
        "softmax:cache_dtype=3": "expects cache_dtype as str or None, got 3",
    }.items():
        with pytest.raises(TypeError, match=message):
            ops.get_mechanism(spec)
    assert ops.get_mechanism("aaren:scale=1").scale == 1
    for text in ("3", "chunk_size", "chunk_size=", "chunk_size=4)", "chunk_size=f(2)"):
        with pytest.raises(ValueError, match="of 'aaren' as name=value,name=value after the colon"):
            ops.get_mechanism(f"aaren:{text}")


def test_unknown_name() -> None:
    with pytest.raises(
        ValueError, match="unknown mechanism 'arena'; choose one of: softmax, aaren"
    ):
        ops.get_mechanism("arena")


def test_an_unknown_name_is_near_to_one() -> None:
    with pytest.raises(ValueError, match=r"nystrom\. Did you mean 'elementwise_series'\?"):
        ops.get_mechanism("elementwise_serie:order=2")
    with pytest.raises(ValueError, match=r"nystrom\.$"):
        ops.get_mechanism("x")


def test_old_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match="'hedgehog' is 'taylor_features' since 2026-11-23"):
        assert ops.get_mechanism("hedgehog:scale=1.0") == ops.TaylorFeatures(scale=1.0)
    with pytest.warns(DeprecationWarning, match=r"ops\.Hedgehog is .*ops\.TaylorFeatures since"):
        assert ops.Hedgehog is ops.TaylorFeatures
    assert "hedgehog" not in ops.list_mechanisms() and "Hedgehog" not in ops.__all__
    with pytest.raises(AttributeError, match=r"flax_linattn\.ops' has no attribute 'Nothing'"):
        _ = ops.Nothing


def test_one_line_registers_a_mechanism() -> None:
    """Its name, its class and what it is come from its home alone."""
    for name in ops.list_mechanisms():
        mechanism = ops.get_mechanism(name)
        assert getattr(ops, type(mechanism).__name__) is type(mechanism)
        assert type(mechanism).__name__ in ops.__all__
        assert mechanism.about and not mechanism.about.endswith(".")


def test_unknown_hyperparameter() -> None:
    with pytest.raises(TypeError, match="'aaren' has no hyperparameter 'chunk'; it has: chunk"):
        ops.get_mechanism("aaren", chunk=3)


@pytest.mark.parametrize(
    "name", [n for n in ops.list_mechanisms() if hasattr(ops.get_mechanism(n), "chunk_size")]
)
def test_chunk_size_is_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        ops.get_mechanism(name, chunk_size=0)
