"""Options of classification runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Literal

from flax_linattn.checks import at_least, positive, rate
from flax_linattn.tasks.runs import RunConfig, as_name


@dataclasses.dataclass(frozen=True)
class ClassifyConfig(RunConfig):
    """Everything that a classification run depends on; the defaults are Time-Series-Library's.

    Attributes:
        train_file: a .ts or .arff file (.gz and .xz too); default the embedded
            JapaneseVowels.
        test_file: the test file that belongs to it.
        mechanism: the attention mechanism, by name; its hyperparameters may follow, as in
            elementwise_series:order=2.
        protocol: "honest" selects on a stratified share of the training data and standardises
            by the training data. "tslib" is as Time-Series-Library published: it SELECTS ON
            THE TEST SET and standardises each set by itself, so its accuracies are optimistic.
        features: width of the model.
        num_layers: transformer blocks.
        num_heads: attention heads.
        hidden_features: width of the feed-forward layers.
        dropout_rate: share of features dropped in training.
        norm: LayerNorm before ("pre") or after ("post") each sublayer's residual.
        pooling: "mean", "last" or "flatten"; "auto" is "mean" for honest, "flatten" for tslib.
        embedding: "causal" (streams) or "circular"; "auto" is "causal" for honest,
            "circular" for tslib.
        padding: whether attention sees the padding of shorter sequences ("seen") or not
            ("masked"); "auto" is "masked" for honest, "seen" for tslib.
        causal: whether attention sees only the past.
        epochs: most passes over the training data.
        patience: epochs without improvement before stopping.
        batch_size: sequences a step.
        buckets: lengths to pad to, each for an equal share of the sequences; a batch holds those of
            one. Less padding is computed, and the model compiled once for each.
        learning_rate: of RAdam.
        schedule: "constant", or "steps": after every fifth epoch e the rate becomes
            learning_rate * 0.5**(e - 1), as Time-Series-Library had it at the time of the
            Aaren paper; "auto" is "constant" for honest, "steps" for tslib.
        clip_norm: largest global norm of the gradients.
        validation_fraction: share of the training data held out by the honest protocol.
        dtype: of the computation; parameters, sums and losses stay float32. float16 is trained
            with a loss scale.
        remat: what training keeps of a block for its gradient: all ("none"), the results of matrix
            products ("dots") or its input ("blocks").
        seed: of initialisation, order and dropout.
    """

    task: ClassVar[str] = "classify"

    train_file: Path | None = None
    test_file: Path | None = None
    mechanism: str = "aaren"
    protocol: Literal["honest", "tslib"] = "honest"
    features: int = 128
    num_layers: int = 3
    num_heads: int = 8
    hidden_features: int = 256
    dropout_rate: float = 0.1
    norm: Literal["pre", "post"] = "post"
    pooling: Literal["auto", "mean", "last", "flatten"] = "auto"
    embedding: Literal["auto", "causal", "circular"] = "auto"
    padding: Literal["auto", "masked", "seen"] = "auto"
    causal: bool = True
    epochs: int = 100
    patience: int = 10
    batch_size: int = 16
    buckets: int = 1
    learning_rate: float = 1e-3
    schedule: Literal["auto", "constant", "steps"] = "auto"
    clip_norm: float = 4.0
    validation_fraction: float = 0.2
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    remat: Literal["none", "dots", "blocks"] = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.train_file is None) != (self.test_file is None):
            raise ValueError("give both train_file and test_file, or neither for JapaneseVowels.")
        if self.train_file is not None and self.train_file == self.test_file:
            raise ValueError(f"train_file and test_file are the same file, {self.train_file}.")
        super().__post_init__()
        at_least(
            1,
            epochs=self.epochs,
            batch_size=self.batch_size,
            buckets=self.buckets,
            patience=self.patience,
        )
        positive(learning_rate=self.learning_rate, clip_norm=self.clip_norm)
        rate(dropout_rate=self.dropout_rate)
        chosen = self._chosen
        if self.buckets > 1 and (
            chosen["pooling"] == "flatten"
            or chosen["embedding"] == "circular"
            or chosen["padding"] == "seen"
        ):
            raise ValueError(
                "buckets need a model whose parameters and results do not depend on the padding: "
                "pooling mean or last, embedding causal and padding masked."
            )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        dataset = "japanese-vowels" if self.train_file is None else self.train_file.name
        return as_name(dataset.split(".")[0], self.mechanism, self.protocol, self.seed)

    def resolve(self) -> ClassifyConfig:
        """Makes paths absolute and replaces "auto" by what the protocol stands for."""
        return dataclasses.replace(super().resolve(), **self._chosen)

    @property
    def _chosen(self) -> dict[str, Any]:
        """What the protocol stands for where an option is "auto"."""
        honest = self.protocol == "honest"
        defaults = {
            "pooling": "mean" if honest else "flatten",
            "embedding": "causal" if honest else "circular",
            "padding": "masked" if honest else "seen",
            "schedule": "constant" if honest else "steps",
        }
        return {
            name: default if getattr(self, name) == "auto" else getattr(self, name)
            for name, default in defaults.items()
        }
