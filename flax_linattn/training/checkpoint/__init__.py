"""Checkpoints on disk: written whole or not at all, verified when read, the best one kept.

A run folder holds ``checkpoints/step_000000051_epoch_00003``: 51 training steps and 3 validations
done (of a run by epochs, the epochs finished). In it are

- ``arrays``: what Orbax wrote, flat dicts of name -> array in two items: ``model`` (parameters and
  the model's other variables) and ``training`` (optimizer state, step, metric sums);
- ``progress.json``: the host's record, the arrays' names and shapes, and every file's checksum.

What knows nothing of runs is :mod:`flax_linattn.checkpoint`; here a module each names, writes and
reads the checkpoints of one.
"""

from flax_linattn.checkpoint.arrays import CorruptCheckpointError
from flax_linattn.checkpoint.arrays import fingerprint as fingerprint
from flax_linattn.training.checkpoint.folder import Checkpoint, list_checkpoints
from flax_linattn.training.checkpoint.read import check_same_model as check_same_model
from flax_linattn.training.checkpoint.read import load_best, load_checkpoint

__all__ = [
    "Checkpoint",
    "CorruptCheckpointError",
    "list_checkpoints",
    "load_best",
    "load_checkpoint",
]
