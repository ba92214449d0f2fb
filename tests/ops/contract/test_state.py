"""States of one's own in functions that are saved."""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import export

from flax_linattn import ops


def there_and_back(state: object) -> object:
    saved = export.export(jax.jit(lambda state: state))(state).serialize()
    return export.deserialize(saved).call(state)


def test_another_class_of_one_name_needs_a_name() -> None:
    @ops.register_state
    class Level(NamedTuple):
        mean: jax.Array

    class Outer:
        class Level(NamedTuple):
            mean: jax.Array

    with pytest.raises(
        ValueError,
        match=r"already belongs to .*Level in .* give .*Outer.Level its own name: .*name=",
    ):
        ops.register_state(Outer.Level)
    assert ops.register_state(name="tests.OuterLevel")(Outer.Level) is Outer.Level
    for kind in (Level, Outer.Level):
        there_and_back(kind(jnp.ones(2)))


def test_a_class_made_once_more_is_told() -> None:
    def make() -> type:
        @ops.register_state
        class Again(NamedTuple):
            mean: jax.Array

        return Again

    first = make()
    with pytest.warns(UserWarning, match="was defined again"):
        make()
    there_and_back(first(jnp.ones(2)))


@ops.register_state
@partial(jax.tree_util.register_dataclass, data_fields=("x",), meta_fields=("shape",))
@dataclasses.dataclass(frozen=True)
class Nested:
    x: jax.Array
    shape: tuple[tuple[int, int], ...]


def test_nested_static_fields() -> None:
    assert there_and_back(Nested(jnp.ones(2), ((1, 2), (3, 4)))).shape == ((1, 2), (3, 4))
