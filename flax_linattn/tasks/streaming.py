"""A run's model over a stream, whatever its task."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flax_linattn import inference
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.tasks.run_types import Run


class Streaming(abc.ABC):
    """What comes in on a line, what goes out, what is remembered.

    Its state on disk is that of the model's stream, the number of observations, and what ``facts``
    says; it goes on only with the same model and the same ``options``.

    Args:
        run: the trained run.
        stream: of its model.
        header: names of the columns that ``cells`` gives.
        **options: those that a state depends on, as JSON values.

    Attributes:
        header: as given.
        num_steps: observations taken in so far, in all sessions.
    """

    def __init__(
        self, run: Run, stream: inference.Stream, header: Sequence[Any], **options: Any
    ) -> None:
        self._run, self._stream, self.header = run, stream, header
        self._owner = {"model": fingerprint(run.model), **options}
        self.num_steps = 0

    @abc.abstractmethod
    def parse(self, lines: Iterable[str], name: str) -> Iterator[Any]:
        """Reads observations, one a line.

        Args:
            lines: the text.
            name: of the source, for messages.

        Raises:
            ValueError: a line that holds something else; the message begins with name and line.
        """

    @abc.abstractmethod
    def cells(self, observation: Any) -> Sequence[Any] | None:
        """Takes in an observation, and counts it in ``num_steps``.

        Returns:
            The cells of a line; None where there is nothing to say, as where a sequence begins.

        Raises:
            ValueError: the observation does not fit, or the stream has no room for it.
        """

    def source(self) -> Iterator[Any] | None:
        """Observations of its own instead of lines, where the options ask for them."""
        return None

    def facts(self) -> dict[str, Any]:
        """What is to be remembered beside the model's state, as JSON values."""
        return {}

    def restore(self, facts: Mapping[str, Any]) -> None:  # noqa: B027  (nothing beside the state)
        """Goes on from what ``facts`` gave."""

    def end(self) -> str | None:
        """What there is to say at the end of the stream."""
        return None

    def draw(self, path: Path) -> None:
        """Draws what came last to a PNG file.

        Raises:
            ValueError: there is no such figure, or matplotlib is not installed.
        """
        raise OptionError("there is no figure of this stream; leave it out.", "figure")

    @property
    def draws(self) -> bool:
        """Whether there is a figure."""
        return type(self).draw is not Streaming.draw

    def save(self, path: Path) -> None:
        """Writes all that the stream has to remember; a kill leaves the file before, or the new."""
        facts = {"num_steps": self.num_steps, **self.facts(), **self._owner}
        save_state(path, self._stream.state, facts)

    def load(self, path: Path) -> None:
        """Goes on from what ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is damaged, or of another run or other options.
        """
        check = partial(self._check_owner, path)
        state, facts = load_state(path, self._stream.state, check=check)
        self.restore(facts)
        self._stream.state = state
        self.num_steps = facts["num_steps"]

    def _check_owner(self, path: Path, facts: Mapping[str, Any]) -> None:
        if any(facts.get(name) != value for name, value in self._owner.items()):
            others = [name for name in self._owner if name != "model"]
            raise OptionError(
                f"{path} is the state of a stream of another run"
                f"{''.join(f', or with another {name}' for name in others)}; give what it was made "
                "with, or remove it to begin anew.",
                "state",
                *others,
            )
