"""A task outside the package: the next symbol of a real series, cut into as many as it has bins.

Registered by name, it is trained, resumed, evaluated and streamed by the package's commands.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_linattn import data, inference, models, training
from flax_linattn.models import Layers
from flax_linattn.tasks import (
    Baselines,
    Config,
    DataSpec,
    FitOptions,
    ModelOptions,
    Options,
    Report,
    Streaming,
)
from flax_linattn.tasks import Task as AnyTask
from flax_linattn.tasks.files import checksum, make_file_name


@dataclasses.dataclass(frozen=True)
class BinsData(Options):
    """Which symbols.

    Attributes:
        num_symbols: bins of equal shares of the training values.
        length: symbols of a sequence.
        rows: hours of the series.
    """

    num_symbols: int = 5
    length: int = 24
    rows: int = 2400


@dataclasses.dataclass(frozen=True)
class BinsModel(ModelOptions):
    """The language model."""

    layers: Layers = Layers(features=16, num_layers=1, num_heads=2, hidden_features=16)  # noqa: RUF009


@dataclasses.dataclass(frozen=True)
class BinsConfig(Config):
    """All options."""

    data: BinsData = BinsData()
    model: BinsModel = BinsModel()
    fit: FitOptions = FitOptions(epochs=3, batch_size=16)  # noqa: RUF009

    @property
    def name(self):
        return make_file_name("bins", self.seeds)


@dataclasses.dataclass(frozen=True)
class BinsSpec(DataSpec):
    """The borders of the bins, and a checksum of the values."""

    borders: tuple[float, ...]
    checksum: str
    scale_fields: ClassVar[tuple[str, ...]] = ("borders",)

    @property
    def observation(self):
        return jax.ShapeDtypeStruct((1,), jnp.int32)

    def symbols(self, values):
        return np.digitize(values, self.borders).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class BinsStreamOptions:
    """A number a line."""


def loss(model, batch, dropout_key):
    logits = model(batch["symbols"][:, :-1], dropout_key=dropout_key)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["symbols"][:, 1:])
    count = jnp.sum(batch["weight"])
    total = jnp.sum(jnp.mean(nats, axis=1) * batch["weight"])
    return total / count, {"loss": (total, count)}


class BinsTask(AnyTask[BinsConfig, list[np.ndarray], BinsSpec]):
    """Next symbols."""

    name: ClassVar[str] = "bins"
    Config = BinsConfig
    DataSpec = BinsSpec
    StreamOptions = BinsStreamOptions

    def load(self, config):
        values = data.etth1().values[: config.data.rows, -1]
        return np.split(values, [int(0.6 * len(values)), int(0.8 * len(values))])

    def describe(self, data_, config):
        shares = np.arange(1, config.data.num_symbols) / config.data.num_symbols
        borders = np.quantile(data_[0], shares)
        return BinsSpec(tuple(borders.tolist()), checksum(data_))

    def batches(self, data_, config, data_spec, sequence_shards):
        def of(values, seed):
            symbols = data_spec.symbols(values)
            rows = symbols[: len(symbols) // config.data.length * config.data.length]
            arrays = {"symbols": rows.reshape(-1, config.data.length)}
            return data.Batches(arrays, config.fit.batch_size, seed=seed)

        train, validation, test = data_
        return training.Splits(of(train, config.seed), of(validation, None), of(test, None))

    def model(self, config, data_spec, placement=training.ONE_DEVICE):
        layers = config.layers.map_mechanisms(placement.mechanism)
        return models.LanguageModel(
            config.data.num_symbols,
            layers=layers,
            max_length=config.data.length,
            rngs=nnx.Rngs(config.seed),
        )

    def objective(self, config, data_spec, steps_per_epoch):
        probe = jnp.arange(config.data.length)[None] % config.data.num_symbols

        def validate(model, step):
            continued = inference.generate(model, probe[:, :8], 4).tokens
            return {"exact_matches": float(jnp.mean(continued == probe[:, 8:12]))}

        optimizer = config.fit.make_optimizer(steps_per_epoch)
        return training.Objective(loss, optimizer, validate=validate)

    def test_batches(self, run, file):
        if file is not None:
            raise ValueError("the symbols come with the package; leave the test file out.")
        data_ = self.load(run.config)
        if checksum(data_) != run.data_spec.checksum:
            raise ValueError("the data of the run have changed since training.")
        return self.batches(data_, run.config, run.data_spec, 1).test

    def test(self, run, batches):
        metrics = training.evaluate(run.model, loss, batches)
        bits, symbols = metrics["loss"] / np.log(2), batches.arrays["symbols"].size
        values = {"test_bits": bits, "symbols": symbols}
        return Report(values, baselines=Baselines("bits", ("guess",)))

    def test_baselines(self, run, batches):
        return {"guess_bits": float(np.log2(run.config.data.num_symbols))}

    def stream_error(self, run, batches):
        symbols = batches.batch(0)["symbols"]
        parallel = jax.nn.softmax(nnx.jit(lambda model, x: model(x))(run.model, symbols))
        streamed = jax.nn.softmax(inference.unroll(run.model, symbols))
        error = float(jnp.max(jnp.abs(parallel - streamed)))
        return {"stream_max_error": error, "stream_steps": symbols.size}

    def stream(self, run, options):
        return BinsStream(run)


class BinsStream(Streaming):
    """The probabilities of the next symbol after each number."""

    def __init__(self, run):
        columns = ["step", *range(run.config.data.num_symbols)]
        super().__init__(run, inference.Stream(run.model), columns)

    def parse(self, lines):
        for line in lines:
            try:
                yield float(line)
            except ValueError:
                raise ValueError(f"expected a number, got {line!r}.") from None

    def cells(self, observation):
        symbol = self._run.data_spec.symbols(np.array([observation]))
        self.num_steps += 1
        return [self.num_steps, *np.asarray(jax.nn.softmax(self._stream.step(symbol)[0]))]
