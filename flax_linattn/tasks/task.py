"""What a task is: what ties data, model, loss and metrics together."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pandas as pd
from flax import nnx

from flax_linattn import training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.baselines import Baselines
from flax_linattn.tasks.options import Config, check_direction
from flax_linattn.tasks.spec import DataSpec, Run
from flax_linattn.tasks.streaming import Streaming

C = TypeVar("C", bound=Config)
D = TypeVar("D")
P = TypeVar("P", bound=DataSpec)


class DataSummary(NamedTuple):
    """A summary of a run's data, for people.

    Attributes:
        text: names, sizes and the like, in a few lines.
        notes: what deserves a second look, a line each.
    """

    text: str = ""
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """What a test came to.

    Attributes:
        values: JSON values by name, as test.json holds them.
        tables: names of those values that are tables: lists of rows, each a dict.
        figures: file name -> a function that draws the figure to a path.
        charts: file name -> a function that draws what ``values`` hold to a path: those of the
            baselines among them, which the test does not know.
        baselines: what of the values are those of simple methods, which the model has to beat.
    """

    values: Mapping[str, Any]
    tables: Sequence[str] = ()
    figures: Mapping[str, Callable[[Path], None]] = dataclasses.field(default_factory=dict)
    baselines: Baselines | None = None
    charts: Mapping[str, Callable[[Mapping[str, Any], Path], None]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def judged(self) -> dict[str, Any]:
        """The values, and the baselines that the model loses to: see ``Baselines.judged``."""
        judged = {} if self.baselines is None else self.baselines.judged(self.values)
        return {**self.values, **judged}

    @property
    def is_beaten(self) -> bool:
        """Whether a baseline does better than the model on the test data, in any metric."""
        judged = {} if self.baselines is None else self.baselines.judged(self.values)
        return any(names for key, names in judged.items() if key != "beaten_by_on_validation")

    @property
    def verdict(self) -> str:
        """A sentence on how the model compares with the baselines; empty without any."""
        return "" if self.baselines is None else self.baselines.verdict(self.values)


class Task(abc.ABC, Generic[C, D, P]):
    """A task: stateless, with the state in run folders.

    Training, testing, predicting and streaming are written once, for all tasks: ``tasks.train``,
    ``tasks.evaluate``, ``tasks.predict`` and ``tasks.stream``. What only some tasks do, such as
    acting in environments, are the protocols of ``tasks.protocols``.

    Attributes:
        name: by which the registry and run folders know it.
        Config: its options.
        DataSpec: what its runs remember of their data.
        StreamOptions: a dataclass of the options that only its streams have.
        is_causal: the direction of its models, which not every mechanism has; None = either.
        splits_time: whether a mesh may split its sequences over devices along time.
        presets: published protocols, functions config -> config, by name.
        default_preset: the one of a command that names no preset, and no ``model`` but that of this
            one; None where a new ``Config`` is as good.
    """

    name: ClassVar[str]
    Config: ClassVar[type[Config]]
    DataSpec: ClassVar[type[DataSpec]]
    StreamOptions: ClassVar[type]
    is_causal: ClassVar[bool | None] = None
    splits_time: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    default_preset: ClassVar[str | None] = None

    def check(self, config: C, placement: training.Placement) -> None:
        """Refuses what the task or the devices cannot do, before data are read.

        Raises:
            ValueError: they do not.
        """
        if placement.sequence_shards > 1 and not self.splits_time:
            raise OptionError(
                f"a run of {self.name} is not split along time; leave seq out of the mesh.", "mesh"
            )
        if self.is_causal is not None:
            check_direction(config, self.is_causal)

    @abc.abstractmethod
    def load(self, config: C) -> D:
        """The data of a run.

        Raises:
            ValueError: a damaged file, or data that do not fit.
            FileNotFoundError: a file is missing.
        """

    @abc.abstractmethod
    def describe(self, data: D, config: C) -> P:
        """What a run has to remember; scales and the like from the training part alone."""

    def about_data(self, data: D, config: C) -> DataSummary:
        """What people should know of the data, before a model is trained on them."""
        return DataSummary()

    @abc.abstractmethod
    def batches(self, data: D, config: C, data_spec: P, sequence_shards: int) -> training.Splits:
        """Batches to train, validate and test on: pure functions of the step.

        Args:
            data: of the run.
            config: its options.
            data_spec: what it learned of them.
            sequence_shards: number of devices that share a sequence; divides its length.
        """

    @abc.abstractmethod
    def model(
        self, config: C, data_spec: P, placement: training.Placement = training.ONE_DEVICE
    ) -> nnx.Module:
        """The freshly initialised model of a run."""

    @abc.abstractmethod
    def objective(self, config: C, data_spec: P, steps_per_epoch: int) -> training.Objective:
        """Loss, optimizer, and what selects the best parameters."""

    @abc.abstractmethod
    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Batches of a run's own test data, or of another file.

        Raises:
            ValueError: the file does not fit the run; the run's own data have changed.
            FileNotFoundError: a file is missing.
        """

    @abc.abstractmethod
    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Tests a run on batches: numbers, tables, figures."""

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """The numbers of ``Report.baselines`` on the same batches, which no run's model changes.

        They join the report, a table row by row that of its name; those of many runs are computed
        once.
        """
        return {}

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """How far the stream of a model that streams is from the parallel model.

        Returns:
            ``stream_max_error`` and ``stream_steps``, over how many steps; or nothing.
        """
        return {}

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """What a run's model says of a file, or of the run's own data: see ``tasks.predict``.

        Raises:
            ValueError: the file does not fit the run, or the task has nothing to predict.
            FileNotFoundError: a file is missing.
        """
        raise OptionError(f"a run of {self.name} writes no predictions; stream it.", "run")

    @abc.abstractmethod
    def stream(self, run: Run, options: Any) -> Streaming:
        """A stream of a run.

        Raises:
            ValueError: the run's model cannot stream, or an option is out of range.
        """
