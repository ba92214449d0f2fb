"""The task of synthetic sequences: series and recall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from flax_linattn import inference, models, training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.synthetic.data import (
    Generator,
    SyntheticSpec,
    compute_checksum,
    make_batches,
    make_generator,
)
from flax_linattn.tasks.synthetic.evaluate import (
    BASELINES,
    LOSSES,
    Model,
    count_matches,
    one_lag,
    predict,
    predict_scores,
)
from flax_linattn.tasks.synthetic.options import (
    SyntheticConfig,
    SyntheticOptions,
    SyntheticStreamOptions,
)
from flax_linattn.tasks.synthetic.stream import SyntheticStream
from flax_linattn.tasks.task import DataSummary, Report, Task


class SyntheticTask(SyntheticOptions, Task[SyntheticConfig, Generator, SyntheticSpec]):
    """Predicts the next symbol of a series, or the answer to a query of a sequence."""

    DataSpec = SyntheticSpec
    splits_time = False

    def load(self, config: SyntheticConfig) -> Generator:
        """Makes the generator of the synthetic sequences."""
        return make_generator(config.data)

    def describe(self, data: Generator, config: SyntheticConfig) -> SyntheticSpec:
        """Makes the data spec: number of tokens, accuracy of chance, checksum."""
        checksum = compute_checksum(make_batches(data, config))
        return SyntheticSpec(data.num_tokens, data.chance, checksum)

    def about_data(self, data: Generator, config: SyntheticConfig) -> DataSummary:
        """Describes the rules and sizes of the data."""
        given, fit = config.data, config.fit
        if given.recalls:
            what = f"{given.rules}: sequences of {given.context} symbols out of {data.num_tokens}"
        else:
            what = (
                f"{given.rules}: series of {given.base} symbols with a delay of {given.delay} and "
                f"a context length of {given.context}"
            )
        sizes = f"{fit.batch_size} predictions per epoch, accuracy of chance {data.chance:.3g}"
        return DataSummary(f"{what}; {sizes}")

    def batches(
        self,
        data: Generator,
        config: SyntheticConfig,
        data_spec: SyntheticSpec,
        sequence_shards: int,
    ) -> training.Splits:
        """Makes batches from random streams of the run's seed."""
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
        """Makes the objective: the loss of the options; the accuracy selects parameters."""
        # Hyperparameters are in the state, so that runs trained together may differ in them.
        optimizer = config.fit.make_optimizer(steps_per_epoch, inject_hyperparams=True)
        loss = LOSSES[config.fit.loss]
        return training.Objective(loss, optimizer, monitor="accuracy", mode="max")

    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Makes the test batches from the run's seed; there is no other test data."""
        if file is not None:
            raise OptionError(
                "synthetic test data are generated, not read from a file; remove test_file=....",
                "test_file",
            )
        splits = make_batches(make_generator(run.config.data), run.config)
        if compute_checksum(splits) != run.data_spec.checksum:
            raise ValueError(
                "the data of the run have changed since training, because this version of NumPy or "
                "of the library generates other data."
            )
        assert splits.test is not None
        return splits.test

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Reports accuracy and success on new sequences."""
        metrics = training.evaluate(run.model, LOSSES[run.config.fit.loss], batches)
        values = {
            "rules": run.config.data.rules,
            "mechanism": mechanism_name(run.config.layers),
            **{f"test_{name}": value for name, value in metrics.items()},
        }
        return Report(values, baselines=BASELINES)

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Tests chance, the longest match, and the best lag."""
        counts = np.sum([count_matches(batches.batch(i)) for i in range(len(batches))], axis=0)
        return {
            "num_test": int(counts[1]),
            "chance_accuracy": run.data_spec.chance,
            "longest_match_accuracy": float(counts[0] / counts[1]),
            **one_lag(run, batches),
        }

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Compares scores over a series or a hundred sequences."""
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
        """Predicts the next symbol of each sequence."""
        return predict(run, file)

    def stream(self, run: Run, options: SyntheticStreamOptions) -> SyntheticStream:
        """Makes a stream that predicts the next symbol."""
        return SyntheticStream(run, max_length=options.max_length)
