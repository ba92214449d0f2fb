"""Data specs are written, read and checked by their annotations."""

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from flax_linattn import data
from flax_linattn.tasks import DataSpec


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    split: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Spec(DataSpec):
    sizes: tuple[int, ...]
    scale: data.Standardizer
    parts: tuple[Part, ...] = ()
    checksum: Mapping[str, str] = dataclasses.field(default_factory=dict)


SPEC = Spec(
    (3, 4),
    data.Standardizer(np.array([0.1]), np.array([2.0])),
    (Part("a", ((0, 3), (3, 5))),),
    {"train": "x"},
)


@dataclasses.dataclass(frozen=True)
class Renamed(DataSpec):
    type_names: tuple[str, ...]
    checksum: str = ""
    json_keys = MappingProxyType({"type_names": "mark_names"})


def test_a_renamed_field_keeps_its_key():
    assert Renamed(("a",)).to_json() == {"mark_names": ["a"], "checksum": ""}
    assert Renamed.from_json({"mark_names": ["a"]}) == Renamed(("a",))
    with pytest.raises(ValueError, match="unknown field 'type_names'; expected one of mark_names"):
        Renamed.from_json({"type_names": ["a"]})


def test_a_spec_comes_back_from_json():
    values = json.loads(json.dumps(SPEC.to_json()))
    again = Spec.from_json(values)
    again.check()
    assert again.to_json() == SPEC.to_json() == values
    assert (again.sizes, again.parts) == (SPEC.sizes, SPEC.parts)
    np.testing.assert_array_equal(again.scale.mean, SPEC.scale.mean)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": ...}, "the field sizes is missing"),
        ({"color": 1}, "unknown field 'color'; expected one of sizes, scale, parts, checksum"),
        ({"sizes": "34"}, "sizes must be a list, each an integer, got '34'"),
        ({"sizes": [3, 0.5]}, "sizes must be a list, each an integer"),
        ({"scale": {"mean": [0.1]}}, "the field std is missing"),
        ({"scale": {"mean": [0.1], "std": [0.0]}}, "expected finite means and finite positive"),
        ({"scale": 3}, "scale must be a Standardizer"),
        ({"parts": [{"name": 1, "split": []}]}, "name must be text, got 1"),
        ({"parts": [{"name": "a", "split": [[1]]}]}, "split must be a list"),
        ({"checksum": {"train": 3}}, "checksum must be names and values"),
    ],
)
def test_a_damaged_spec_is_refused(changes, message):
    values = {**SPEC.to_json(), **changes}
    values = {name: value for name, value in values.items() if value is not ...}
    with pytest.raises((ValueError, TypeError), match=message):
        Spec.from_json(values).check()
