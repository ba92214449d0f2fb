"""What some tasks do beside what every task does, asked for by ``isinstance``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from flax_linattn import training

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from flax_linattn.control import Agent
    from flax_linattn.data.sets.catalog import Entry
    from flax_linattn.tasks.spec import Run
    from flax_linattn.tasks.task import Report


@runtime_checkable
class Acting(Protocol):
    """A task whose runs act in environments."""

    def agent(self, run: Run, environments: VectorEnv, **options: Any) -> Agent:
        """What plays a run's model in environments.

        Args:
            run: the trained run.
            environments: where it is going to play.
            **options: of the task's agents, such as ``target_return``.

        Raises:
            ValueError: an option is out of range.
        """


@runtime_checkable
class Backtesting(Protocol):
    """A task whose data have an order in time."""

    def backtest(self, run_dir: Path, **options: Any) -> Report:
        """Tests a run over folds of later times.

        Args:
            run_dir: the run folder.
            **options: such as ``folds``.

        Raises:
            ValueError: an option is out of range.
        """


@runtime_checkable
class Calibrating(Protocol):
    """A task that sets a part of its models by computation rather than by steps of training."""

    def begin(
        self, models: Sequence[Any], splits: training.Splits, config: Any, data_spec: Any
    ) -> None:
        """Sets what of new models is computed from the training data at once.

        Args:
            models: of all runs, as ``Task.model`` gave them.
            splits: the batches that they are going to be trained on.
            config: the options.
            data_spec: what was learned of the data.
        """

    def is_calibrated(self, config: Any) -> bool:
        """Whether the options ask for ``calibrate``."""

    def calibrate(self, run: Run, validation: training.BatchSource) -> str | None:
        """Sets the ``models.Correction`` of a run's model once it is trained.

        Returns:
            What people should know of it; None for nothing.
        """


@runtime_checkable
class Choosing(Protocol):
    """A task whose data choose options that ``Config.auto_values`` leaves open."""

    def choose(self, data: Any, config: Any) -> tuple[Any, Sequence[str]]:
        """Fills in the options that are open, from training and validation data alone.

        Args:
            data: of the run.
            config: its options.

        Returns:
            The options, none of them open, and what people should know of the choices.
        """


@runtime_checkable
class InCatalog(Protocol):
    """A task that trains on data sets of ``data.sets.catalog``.

    Attributes:
        kinds: of its entries, those that the task takes.
    """

    kinds: tuple[str, ...]

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """Options that train on a data set of the catalog, by name."""
