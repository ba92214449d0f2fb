"""Arrays on disk: written whole or not at all, verified when read. It knows nothing of runs.

=========================== ===============================================================
name                        what it does
=========================== ===============================================================
:func:`write_arrays`        named arrays of trees into a folder, by Orbax, with a manifest
:func:`check_files`         whether every file is there as it was written
:func:`check_shapes`        whether the arrays are those of a model, before one is made
:func:`read_arrays`         the arrays as trees like given ones
:func:`write_json`          JSON values with a format number and a checksum
:func:`read_json`           the same back
=========================== ===============================================================

Models (:func:`flax_linattn.models.save_model`) and the checkpoints of runs
(:mod:`flax_linattn.training`) are made of these. What is damaged raises
:class:`flax_linattn.training.CorruptCheckpointError`.
"""

from flax_linattn.checkpoint.arrays import CorruptCheckpointError as CorruptCheckpointError
from flax_linattn.checkpoint.arrays import (
    Manifest,
    check_files,
    check_shapes,
    copy_to_host,
    fingerprint,
    named_leaves,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)

__all__ = [
    "Manifest",
    "check_files",
    "check_shapes",
    "copy_to_host",
    "fingerprint",
    "named_leaves",
    "read_arrays",
    "read_json",
    "write_arrays",
    "write_json",
]
