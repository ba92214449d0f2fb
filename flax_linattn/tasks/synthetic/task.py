"""The task of synthetic sequences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from flax_linattn import inference, models, training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.synthetic.data import (
    Drawn,
    SyntheticSpec,
    compute_checksum,
    make_batches,
    make_generator,
)
from flax_linattn.tasks.synthetic.evaluate import (
    BASELINES,
    LOSSES,
    Model,
    matches,
    one_lag,
    predict,
    predict_scores,
)
from flax_linattn.tasks.synthetic.options import SyntheticConfig, recall
from flax_linattn.tasks.synthetic.stream import SyntheticStream, SyntheticStreamOptions
from flax_linattn.tasks.task import DataSummary, Report, Task


class SyntheticTask(Task[SyntheticConfig, Drawn, SyntheticSpec]):
    """The next symbol of a series, or the one that a sequence asks for."""

    name = "synthetic"
    Config = SyntheticConfig
    DataSpec = SyntheticSpec
    is_causal = True
    splits_time = False
    StreamOptions = SyntheticStreamOptions
    presets: ClassVar[Mapping[str, Any]] = {"recall": recall}

    def load(self, config: SyntheticConfig) -> Drawn:
        """Makes the generator of the sequences."""
        return make_generator(config.data)

    def describe(self, data: Drawn, config: SyntheticConfig) -> SyntheticSpec:
        """How many there are, and a checksum."""
        checksum = compute_checksum(make_batches(data, config))
        return SyntheticSpec(data.num_tokens, data.chance, checksum)

    def about_data(self, data: Drawn, config: SyntheticConfig) -> DataSummary:
        """Describes the rules and sizes of the data."""
        given, fit = config.data, config.fit
        if given.recalls:
            what = f"{given.rules}: sequences of {given.context} symbols out of {data.num_tokens}"
        else:
            what = (
                f"{given.rules}: series of {given.base} symbols with a delay of {given.delay}, of "
                f"which {given.context} are seen"
            )
        guesses = f"{fit.batch_size} guesses an epoch, {data.chance:.3g} right by chance"
        return DataSummary(f"{what}; {guesses}")

    def batches(
        self, data: Drawn, config: SyntheticConfig, data_spec: SyntheticSpec, sequence_shards: int
    ) -> training.Splits:
        """Drawn by the run's seed."""
        return make_batches(data, config)

    def model(
        self,
        config: SyntheticConfig,
        data_spec: SyntheticSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> Model:
        """Builds the ``models.WindowModel`` or ``models.LanguageModel`` of a run."""
        layers, context = config.layers.map_mechanisms(placement.mechanism), config.data.context
        rngs = nnx.Rngs(config.seed)
        if config.data.recalls:
            return models.LanguageModel(
                data_spec.num_tokens,
                tied=False,
                position=config.model.position,
                layers=layers,
                max_length=context,
                rngs=rngs,
            )
        return models.WindowModel(
            data_spec.num_tokens,
            context,
            readout=config.model.readout,
            projections=config.model.projections,
            layers=layers,
            kernel_init=nnx.initializers.variance_scaling(
                config.model.init_scale**2, "fan_in", "normal"
            ),
            bias_init=nnx.initializers.zeros_init(),
            rngs=rngs,
        )

    def objective(
        self, config: SyntheticConfig, data_spec: SyntheticSpec, steps_per_epoch: int
    ) -> training.Objective:
        """The squared difference, SGD; selected by accuracy."""
        # The numbers are in the state, so that runs trained at once may differ in them.
        optimizer = config.fit.make_optimizer(steps_per_epoch, inject_hyperparams=True)
        loss = LOSSES[config.fit.loss]
        return training.Objective(loss, optimizer, monitor="accuracy", mode="max")

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Drawn by the run's seed, and never trained on."""
        if file is not None:
            raise OptionError(
                "symbols are drawn, not read; leave the test file out, and change the options of "
                "a run to test another one.",
                "test_file",
            )
        splits = make_batches(make_generator(run.config.data), run.config)
        if compute_checksum(splits) != run.data_spec.checksum:
            raise ValueError(
                "the data of the run have changed since: this version of NumPy or of the library "
                "draws others."
            )
        assert splits.test is not None
        return splits.test

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Accuracy and success over fresh series."""
        metrics = training.evaluate(run.model, LOSSES[run.config.fit.loss], batches)
        values = {
            "rules": run.config.data.rules,
            "mechanism": mechanism_name(run.config.layers),
            **{f"test_{name}": value for name, value in metrics.items()},
        }
        return Report(values, baselines=BASELINES)

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Chance, the longest match, one earlier symbol."""
        counts = np.sum([matches(batches.batch(i)) for i in range(len(batches))], axis=0)
        return {
            "num_test": int(counts[1]),
            "chance_accuracy": run.data_spec.chance,
            "longest_match_accuracy": float(counts[0] / counts[1]),
            **one_lag(run, batches),
        }

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Of scores, over a series or a hundred sequences."""
        batch = batches.batch(0)
        model = run.model
        parallel = np.asarray(predict_scores(model, jnp.asarray(batch["tokens"])))
        if "target" in batch:  # windows of one series, each one symbol later
            context = batch["tokens"].shape[1]
            series = np.concatenate([batch["tokens"][0], batch["tokens"][1:, -1]])
            streamed = inference.unroll(model, jnp.asarray(series[None]))[0, context - 1 :]
        else:
            streamed = inference.unroll(model, jnp.asarray(batch["tokens"]))
        error = float(np.max(np.abs(np.asarray(streamed) - parallel)))
        return {"stream_max_error": error, "stream_steps": int(np.prod(parallel.shape[:-1]))}

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """The next symbol of each sequence."""
        return predict(run, file)

    def stream(self, run: Run, options: SyntheticStreamOptions) -> SyntheticStream:
        """The next symbol after each."""
        return SyntheticStream(run, max_length=options.max_length)
