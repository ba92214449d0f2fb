"""The earlier place of :mod:`flax_linattn.checkpoint.arrays`, moved there on 2026-11-23."""

from flax_linattn.checkpoint.arrays import *  # noqa: F403
