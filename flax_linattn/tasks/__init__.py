"""Tasks tie data, model, loss and metrics together; each task has a folder.

These functions take runs of every task: ``train``, ``evaluate_run`` (test metrics), ``predict_run``
(predictions on new data), ``stream_run`` (observations one by one), ``load_run``, and ``load_runs``
for a folder of several seeds.
"""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
