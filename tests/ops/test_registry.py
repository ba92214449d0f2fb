"""The registry: names, hyperparameters, and what is said when they are wrong."""

import dataclasses

import pytest

from flax_linattn import ops


def test_names_make_mechanisms() -> None:
    names = ops.list_mechanisms()
    assert {"softmax", "aaren"} <= set(names) and len(set(names)) == len(names)
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


def test_unknown_name() -> None:
    with pytest.raises(
        ValueError, match="unknown mechanism 'arena'; choose one of: softmax, aaren"
    ):
        ops.get_mechanism("arena")


def test_unknown_hyperparameter() -> None:
    with pytest.raises(TypeError, match="'aaren' has no hyperparameter 'chunk'; it has: chunk"):
        ops.get_mechanism("aaren", chunk=3)


@pytest.mark.parametrize("name", ops.list_mechanisms())
def test_chunk_size_is_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        ops.get_mechanism(name, chunk_size=0)
