"""The earlier place of :mod:`flax_linattn.checkpoint.checked_json`, moved there on 2026-11-23."""

from flax_linattn.checkpoint.checked_json import *  # noqa: F403
