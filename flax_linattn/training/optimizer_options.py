"""Options of optimizers and learning rate schedules."""

from __future__ import annotations

import dataclasses
from typing import Literal

from flax_linattn.annotations import check_fields
from flax_linattn.checks import OptionError, check_integers, check_positive, check_rate

DEFAULT_BETA2 = 0.999
DEFAULT_MOMENTUM = 0.9
WITH_WEIGHT_DECAY = ("adamw", "lamb", "fused_lamb", "muon", "lion")
WITHOUT_BETA2 = ("sgd", "lion")
WITHOUT_WARMUP = ("halving", "steps")


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """Options of an optimizer and its learning rate schedule; frozen and hashable.

    Attributes:
        optimizer: Update rule. "lamb" is LAMB as published; "fused_lamb" is LAMB as in apex:
            without a bound on the norm of the weights, and without the trust ratio for biases and
            norms. "muon" updates the matrices of hidden layers by Muon and all other parameters by
            AdamW, with one learning rate. "lion" has the published decay rates 0.9 and 0.99; its
            learning rate is usually 3 to 10 times smaller than that of "adamw", and its weight
            decay as many times larger.
        learning_rate: Peak learning rate; the constant factor of the schedule "reciprocal_sqrt".
        schedule: Learning rate schedule after the warmup. "constant": no change. "linear_warmup":
            no change, but the first warmup step already has a positive rate. "cosine": cosine decay
            to ``last_rate`` at the last training step; set ``patience`` to ``epochs``
            so that early stopping does not cut the decay short. "reciprocal_sqrt": learning_rate /
            sqrt(step), as in Long Range Arena. "halving": halved after the second epoch and after
            each later epoch. "steps": learning_rate * 0.5**(e - 1) after every fifth epoch e.
            "halving" and "steps" are schedules of Time-Series-Library.
        warmup: Number of warmup steps, in which the learning rate grows linearly from about 0; a
            value below 1 is a fraction of all steps. Default: 0.05 for the schedule "cosine",
            otherwise 0.
        last_rate: Learning rate at the end of the schedule "cosine". Default: 0.01 * learning_rate.
        lower_at: Epoch after which the learning rate of the schedule "constant" is divided by 10; 0
            never lowers it.
        weight_decay: Decoupled weight decay, for "adamw", "lamb", "fused_lamb", "muon" and "lion".
        decay_mask: Parameters with weight decay: "matrices" (all but biases, norms, class tokens
            and positional embeddings) or "all".
        clip_norm: Maximum global norm of the gradients; larger gradients are scaled down to it.
            Default: 1 for "lamb" and "fused_lamb", as published; no clipping for other optimizers.
        beta2: Decay rate of the second-moment estimate, for all optimizers except "sgd" and "lion";
            for "muon" that of its AdamW.
        momentum: Momentum, for "sgd".

    Raises:
        ValueError: If options are out of range or incompatible.
        TypeError: If the type of an option differs from its annotation.

    Example:
        >>> OptimizerOptions("adamw", schedule="cosine", weight_decay=0.01).warmup_steps(1000)
        50
    """

    optimizer: Literal["adam", "adamw", "radam", "sgd", "lamb", "fused_lamb", "muon", "lion"] = (
        "adam"
    )
    learning_rate: float = 1e-3
    schedule: Literal[
        "constant", "linear_warmup", "cosine", "reciprocal_sqrt", "halving", "steps"
    ] = "constant"
    warmup: float | None = None
    last_rate: float | None = None
    lower_at: int = 0
    weight_decay: float = 0.0
    decay_mask: Literal["matrices", "all"] = "matrices"
    clip_norm: float | None = None
    beta2: float = DEFAULT_BETA2
    momentum: float = DEFAULT_MOMENTUM

    def __post_init__(self) -> None:
        check_fields(self)
        check_positive(learning_rate=self.learning_rate)
        check_integers(0, lower_at=self.lower_at)
        check_rate(beta2=self.beta2, momentum=self.momentum)
        for name in ("last_rate", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise OptionError(f"{name} must be at least 0 and finite, got {value}.", name)
        if self.clip_norm is not None:
            check_positive(clip_norm=self.clip_norm)
        self._check_warmup()
        self._check_optimizer()

    def _check_warmup(self) -> None:
        warmup = self.warmup
        if warmup is not None and float(warmup).is_integer():
            check_integers(0, warmup=int(warmup))
        elif warmup is not None and not 0 <= warmup < 1:
            raise OptionError(
                "warmup must be a fraction of all steps in [0, 1), or an integer number of "
                f"steps, got {warmup}.",
                "warmup",
            )
        if self.schedule == "reciprocal_sqrt" and not warmup:
            raise OptionError(
                "the schedule reciprocal_sqrt needs a warmup; set warmup to a number of steps, or "
                "to a fraction of all steps.",
                "warmup",
                "schedule",
            )
        if warmup and self.schedule in WITHOUT_WARMUP:
            raise OptionError(
                f"the schedule {self.schedule} has no warmup, got warmup={warmup}; set it to 0, or "
                "choose another schedule.",
                "schedule",
                warmup="0",
            )
        if self.lower_at and (warmup or self.schedule != "constant"):
            raise OptionError(
                f"lower_at={self.lower_at} needs a constant learning rate; remove it, or choose "
                'schedule "constant" without a warmup.',
                "lower_at",
                "warmup",
                schedule="constant",
            )

    def _check_optimizer(self) -> None:
        name = self.optimizer
        if self.weight_decay and name not in WITH_WEIGHT_DECAY:
            raise OptionError(
                f"the optimizer {name} has no weight decay, got weight_decay={self.weight_decay}; "
                f"set it to 0, or choose one of {', '.join(WITH_WEIGHT_DECAY)}.",
                "optimizer",
                weight_decay="0",
            )
        if self.momentum != DEFAULT_MOMENTUM and name != "sgd":
            raise OptionError(
                f"momentum is an option of the optimizer sgd, but the optimizer is {name}; remove "
                "momentum, or choose sgd.",
                "momentum",
                "optimizer",
            )
        if self.beta2 != DEFAULT_BETA2 and name in WITHOUT_BETA2:
            raise OptionError(
                f"the optimizer {name} has no second-moment estimate, got beta2={self.beta2}; "
                f"set beta2={DEFAULT_BETA2}, which means none, or choose another optimizer.",
                "beta2",
                "optimizer",
            )

    def warmup_steps(self, total_steps: int) -> int:
        """Number of warmup steps in a training of ``total_steps`` steps."""
        if self.warmup is None:
            return int(0.05 * total_steps) if self.schedule == "cosine" else 0
        return int(self.warmup * total_steps) if self.warmup < 1 else int(self.warmup)
