"""Meshes of simulated devices."""

import math

import jax
from jax.sharding import AxisType, Mesh


def make_mesh(kind: AxisType = AxisType.Auto, **axes: int) -> Mesh:
    """The first devices, by the names of the axes; ``AxisType.Explicit`` is JAX's default kind."""
    devices = jax.devices()[: math.prod(axes.values())]
    kinds = (kind,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices)
