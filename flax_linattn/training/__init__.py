"""Training: ``fit``, the compiled step, and checkpoints from which a run resumes exactly.

A *run* is the training of one model; a run folder holds the checkpoints, metrics and results of
one run, or of several runs that are trained at once. A *session* is one call of ``fit``; a run may
take several sessions. A *step* is one update of the *parameters*, which are the model's
``nnx.Param`` variables; an *epoch* is one pass over the training batches; a *period* is the
training between two validations. A *split* is a part of the data. The *placement* is the devices
and the sharding of the arrays.

====================  ==========================================================================
module                content
====================  ==========================================================================
``fit_runs``          ``fit``: prepares folder and state, trains, loads the best parameters
``trainer``           the training loop: steps, validations, checkpoints, signals
``step``              the compiled steps: gradient, update, skipping of non-finite updates
``non_finite``        errors for NaN and inf: the step, the array, the likely cause
``validation``        validation metrics
``state``             the arrays on the devices that a step updates
``history``           the progress on the host: metrics, best values, patience, times
``checkpointer``      checkpoints on disk: writing and verifying
``resume``            resuming from the newest intact checkpoint
``results``           results and best parameters of finished runs
``placement``         devices, meshes and sharding
``processes``         several processes of one run
====================  ==========================================================================
"""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
