"""Arrays on disk: written atomically, and verified when read; independent of runs.

=========================== ===============================================================
name                        what it does
=========================== ===============================================================
:func:`write_arrays`        writes named arrays of trees to a folder, by Orbax, with a manifest
:func:`check_files`         checks that every file is unchanged
:func:`check_shapes`        checks that the arrays fit a model, before the model is made
:func:`read_arrays`         reads the arrays as trees
:func:`write_json`          writes JSON values with a format number and a checksum
:func:`read_json`           reads and checks these values
=========================== ===============================================================

Models (:func:`flax_linattn.models.save_model`) and the checkpoints of runs
(:mod:`flax_linattn.training`) use these functions. Damaged files raise
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
