"""Optional protocols of tasks, which callers check with ``isinstance``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from flax_linattn import training
    from flax_linattn.control import Agent
    from flax_linattn.data.sets.catalog import Entry
    from flax_linattn.tasks.spec import Run
    from flax_linattn.tasks.task import Report


@runtime_checkable
class Acting(Protocol):
    """A task whose runs act in environments."""

    def agent(self, run: Run, environments: VectorEnv, **options: Any) -> Agent:
        """Makes an agent that plays a run's model in environments.

        Args:
            run: The trained run.
            environments: Environments to play in.
            **options: Options of the agent, such as ``target_return``.

        Raises:
            ValueError: If an option is out of range.
        """


@runtime_checkable
class Backtesting(Protocol):
    """A task whose data are ordered in time, so that runs can be backtested."""

    def backtest(self, run_dir: Path, **options: Any) -> Report:
        """Tests a run on successive folds of time.

        Args:
            run_dir: The run folder.
            **options: Options of the backtest, such as ``folds``.

        Raises:
            ValueError: If an option is out of range.
        """


@runtime_checkable
class Calibrating(Protocol):
    """A task that computes a part of its parameters directly, without training steps."""

    def begin(
        self, models: Sequence[Any], splits: training.Splits, config: Any, data_spec: Any
    ) -> None:
        """Sets the parameters of new models that are computed from the training data.

        Args:
            models: Models of all runs, as ``Task.model`` made them.
            splits: Batches to train on.
            config: Options of the run.
            data_spec: Data spec of the run.
        """

    def is_calibrated(self, config: Any) -> bool:
        """Whether the options ask for ``calibrate``."""

    def calibrate(self, run: Run, splits: training.Splits) -> str | None:
        """Sets the ``models.FittedVariable`` of a trained model.

        Args:
            run: The trained run.
            splits: Batches that the run was trained and validated on.

        Returns:
            A note for the user, or None.
        """


@runtime_checkable
class Choosing(Protocol):
    """A task that chooses the options of ``Config.auto_values`` from the data."""

    def choose(self, data: Any, config: Any) -> tuple[Any, Sequence[str]]:
        """Chooses the open options from training and validation data alone.

        Args:
            data: Data of the run.
            config: Options of the run.

        Returns:
            The options with all choices made, and notes on the choices for the user.
        """


@runtime_checkable
class Generating(Protocol):
    """A task whose runs generate text."""

    def generate(self, run: Run, prompt: str | bytes, **options: Any) -> Iterator[str]:
        """Continues a prompt: an iterator over pieces of text.

        Args:
            run: The trained run.
            prompt: Text to continue.
            **options: Options of the generation, such as ``max_tokens`` and ``temperature``.

        Raises:
            ValueError: If an option is out of range.
        """

    def generate_batch(self, run: Run, prompts: Sequence[str | bytes], **options: Any) -> list[str]:
        """Continues several prompts at once, with the options of ``generate``."""

    def save_prompt(self, path: Path, run: Run, generator: Iterator[str]) -> int:
        """Saves the state after the text of an iterator of ``generate``; returns the file size."""


@runtime_checkable
class InCatalog(Protocol):
    """A task that trains on data sets of ``data.sets.catalog``.

    Attributes:
        kinds: Kinds of catalog entries that the task accepts.
    """

    kinds: tuple[str, ...]

    def options_for(self, entry: Entry, files: Sequence[Path]) -> dict[str, Any]:
        """Returns the options to train on a data set of the catalog, by name."""
