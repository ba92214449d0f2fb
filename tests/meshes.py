"""Meshes of simulated devices."""

import math

import jax
from jax.sharding import AxisType, Mesh


def make_mesh(**axes: int) -> Mesh:
    """The first devices, by the names of the axes."""
    devices = jax.devices()[: math.prod(axes.values())]
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices)
