"""``Task``: the interface that ties data, model, loss and metrics together."""

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
from flax_linattn.tasks.options import Config, TaskOptions, check_direction
from flax_linattn.tasks.spec import DataSpec, Run
from flax_linattn.tasks.streaming import Streaming

C = TypeVar("C", bound=Config)
D = TypeVar("D")
P = TypeVar("P", bound=DataSpec)


class DataSummary(NamedTuple):
    """A summary of a run's data, for people.

    Attributes:
        text: Names, sizes and the like, in a few lines.
        notes: Notes on unusual data, one line each.
    """

    text: str = ""
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a test: values, tables, figures and baselines.

    Attributes:
        values: JSON values by name, as test.json holds them.
        tables: Names of the values that are tables: lists of rows, each a dict.
        figures: File name -> function that plots a figure to a path.
        charts: File name -> function that plots ``values`` to a path. Unlike figures, charts
            include the values of the baselines, which are computed after the test.
        baselines: Names and metric of the baselines among the values.
    """

    values: Mapping[str, Any]
    tables: Sequence[str] = ()
    figures: Mapping[str, Callable[[Path], None]] = dataclasses.field(default_factory=dict)
    baselines: Baselines | None = None
    charts: Mapping[str, Callable[[Mapping[str, Any], Path], None]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def all_values(self) -> dict[str, Any]:
        """The values, and the names of better baselines; see ``Baselines.better_baselines``."""
        better = {} if self.baselines is None else self.baselines.better_baselines(self.values)
        return {**self.values, **better}

    @property
    def is_beaten(self) -> bool:
        """Whether a baseline is better than the model on the test data, in any metric."""
        better = {} if self.baselines is None else self.baselines.better_baselines(self.values)
        return any(names for key, names in better.items() if key != "beaten_by_on_validation")

    @property
    def verdict(self) -> str:
        """One sentence that compares the model with the baselines; empty without baselines."""
        return "" if self.baselines is None else self.baselines.verdict(self.values)


class Task(TaskOptions, abc.ABC, Generic[C, D, P]):
    """A task: data, model, loss and metrics. It is stateless; run folders hold the state.

    Training, testing, predicting and streaming are written once, for all tasks: ``tasks.train``,
    ``tasks.evaluate``, ``tasks.predict`` and ``tasks.stream``. Optional features of tasks, such as
    acting in environments, are the protocols of ``tasks.protocols``.

    Attributes:
        DataSpec: Class of the metadata of the data.
        splits_time: Whether a mesh may split sequences over devices along time.
    """

    DataSpec: ClassVar[type[DataSpec]]
    splits_time: ClassVar[bool] = True

    def check(self, config: C, placement: training.Placement) -> None:
        """Checks options that the task or the devices do not support, before data are read.

        Raises:
            ValueError: If an option is not supported.
        """
        if placement.sequence_shards > 1 and not self.splits_time:
            raise OptionError(
                f"the task {self.name!r} cannot split sequences in time; remove seq from the mesh.",
                "mesh",
            )
        if self.is_causal is not None:
            check_direction(config, self.is_causal)

    @abc.abstractmethod
    def load(self, config: C) -> D:
        """Loads the data of a run.

        Raises:
            ValueError: If a file is damaged, or the data do not match.
            FileNotFoundError: If a file is missing.
        """

    @abc.abstractmethod
    def describe(self, data: D, config: C) -> P:
        """Makes the data spec of a run; scales are fitted on the training part alone."""

    def about_data(self, data: D, config: C) -> DataSummary:
        """Summarizes the data for the user, before a model is trained."""
        return DataSummary()

    @abc.abstractmethod
    def batches(self, data: D, config: C, data_spec: P, sequence_shards: int) -> training.Splits:
        """Makes training, validation and test batches: pure functions of the step.

        Args:
            data: Data of the run.
            config: Options of the run.
            data_spec: Data spec of the run.
            sequence_shards: Number of devices that a sequence is split over; divides its length.
        """

    @abc.abstractmethod
    def model(
        self, config: C, data_spec: P, placement: training.Placement = training.ONE_DEVICE
    ) -> nnx.Module:
        """Makes the model of a run with new parameters."""

    @abc.abstractmethod
    def objective(self, config: C, data_spec: P, steps_per_epoch: int) -> training.Objective:
        """Makes the objective of a run: loss, optimizer, and the metric that selects parameters."""

    @abc.abstractmethod
    def test_batches(self, run: Run, file: Path | None) -> training.BatchSource:
        """Makes batches of a run's own test data, or of another file.

        Raises:
            ValueError: If the file does not match the run, or the run's own data have changed.
            FileNotFoundError: If a file is missing.
        """

    @abc.abstractmethod
    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Tests a run on batches, and reports values, tables and figures."""

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Tests the baselines of the report on the same batches, once for all runs of a folder.

        The values are merged into the report: a table extends the rows of the table of its name.
        """
        return {}

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Compares the stream of a run with its parallel model.

        Returns:
            ``stream_max_error``, the maximum difference, and ``stream_steps``, the number of
            compared steps; empty for tasks without such a comparison.
        """
        return {}

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """Predicts from a file or from the run's own data; see ``tasks.predict``.

        Raises:
            ValueError: If the file does not match the run, or the task has nothing to predict.
            FileNotFoundError: If a file is missing.
        """
        raise OptionError(
            f"a run of the task {self.name!r} makes no predictions; stream it.", "run"
        )

    @abc.abstractmethod
    def stream(self, run: Run, options: Any) -> Streaming:
        """Makes a stream of a run.

        Raises:
            ValueError: If the run's model cannot stream, or an option is out of range.
        """
