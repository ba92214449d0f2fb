"""A run's model over a stream, whatever its task."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError, quote
from flax_linattn.inference.capacity import count_observations
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run

Record = Mapping[str, Any]
"""What a stream remembers besides the model's state: trees of numbers and arrays, by name."""


class Streaming(abc.ABC):
    """What comes in on a line, what goes out, what is record_attributes.

    A state file holds the state of the model's stream, ``record``, and whose it is: the stream
    continues only with the same model and the same ``options``.

    Args:
        run: the trained run.
        stream: of its model.
        header: names of the columns that ``cells`` gives.
        **options: those that a state depends on, as JSON values.

    Attributes:
        header: as given.
        record_attributes: further attributes in the record, such as "agent.steps": numbers, arrays
            or trees of them, of constant shapes and dtypes.
        num_steps: observations taken in so far, in all sessions.
        num_breaks: rows so far that were none, such as those that only begin a new sequence.
        run_dir: the run's folder, for who looks at a state file; None if not known.
        from_start: whether the lines to parse begin where the stream began, and not after its last
            row.
    """

    record_attributes: tuple[str, ...] = ()

    def __init__(
        self, run: Run, stream: inference.Stream, header: Sequence[Any], **options: Any
    ) -> None:
        self._run, self._stream, self.header = run, stream, header
        seed = {} if run.seed_index is None else {"seed_index": run.seed_index}
        self._owner = {"model": fingerprint(run.model), **seed, **options}
        self.num_steps = self.num_breaks = 0
        self.run_dir: Path | None = None
        self.from_start = False

    @abc.abstractmethod
    def parse(self, lines: Iterable[str]) -> Iterator[Any]:
        """Reads observations from lines, one line after the other.

        Args:
            lines: the text, without newlines and comment lines; see ``tasks.lines.Rows``.

        Raises:
            ValueError: a line holds something else. The caller adds its place.
        """

    @property
    def comments(self) -> bool:
        """Whether there are comment lines, see ``data.tables.cells.is_comment``."""
        return True

    @abc.abstractmethod
    def cells(self, observation: Any) -> Sequence[Any] | None:
        """Takes in an observation, and counts it in ``num_steps`` or ``num_breaks``.

        Returns:
            The cells of a line, numbers in the dtype that they were computed in; None where there
            is nothing to say, as where a sequence begins.

        Raises:
            ValueError: the observation does not fit, or the stream has no room for it.
        """

    def source(self) -> Iterator[Any] | None:
        """Observations of its own instead of lines, where the options ask for them."""
        return None

    def record(self) -> Record:
        """What the stream remembers besides the model's state, by the names of attributes."""
        names = ("num_steps", "num_breaks", "_stream.num_steps", *self.record_attributes)
        return {name: attrgetter(name)(self) for name in names}

    def is_possible(self, record: Record) -> bool:
        """Whether a record's numbers, counts from 0 on and finite, can be those of one stream."""
        return True

    def resume(self) -> None:  # noqa: B027  (most have nothing to do)
        """Prepares what is not in the record, after the record was restored."""

    def ages(self, record: Record) -> Sequence[int]:
        """Observations that each row of the model's stream has taken in, by a record.

        A file whose state of the model says otherwise is refused.
        """
        return [record["_stream.num_steps"]]

    @property
    def max_extra_observations(self) -> int:
        """Most observations that a row takes in beside lines, such as the begin of a sequence."""
        return 0

    @property
    def num_rows(self) -> int:
        """Rows taken in so far, in all sessions: lines that ``parse`` made something of."""
        return self.num_steps + self.num_breaks

    @property
    def state_bytes(self) -> int:
        """The size of the model's state in bytes."""
        return inference.state_bytes(self._stream.state)

    @property
    def last_time(self) -> datetime | int | None:
        """Of the last observation, where observations have times."""
        return None

    def is_processed(self, number: int, observation: Any) -> bool:
        """Whether a row of an input from the stream's beginning on was taken in.

        Args:
            number: of the row, from 1.
            observation: what it holds.
        """
        return number <= self.num_rows

    def last_cells(self) -> Iterator[Sequence[Any]]:
        """Lines that follow those of the observations, at the end of the input."""
        yield from ()

    def end(self) -> str | None:
        """What there is to say at the end of the stream."""
        return None

    def draw(self, path: Path) -> None:
        """Draws what came last to a PNG file.

        Raises:
            ValueError: there is no such figure, or matplotlib is not installed.
        """
        raise OptionError("this stream has no figure; remove the option.", "figure")

    @property
    def draws(self) -> bool:
        """Whether there is a figure."""
        return type(self).draw is not Streaming.draw

    def save(self, path: Path) -> None:
        """Writes all that the stream has to remember; a kill leaves the file before, or the new.

        Raises:
            ValueError: the state holds NaN; the file before stays.
        """
        time = self.last_time
        about = {
            "task": self._run.task.name,
            "run": None if self.run_dir is None else str(self.run_dir),
            "mechanism": mechanism_name(self._run.config.layers),
            "rows": self.num_rows,
            "num_steps": self.num_steps,
            **({} if time is None else {"time": getattr(time, "isoformat", lambda: time)()}),
        }
        save_state(path, self._state(), {**about, **self._owner})

    def _state(self) -> dict[str, Any]:
        """All that is saved: the model's state, and what the stream remembers besides."""
        return {"model": self._stream.state, "record": jax.tree.map(np.asarray, self.record())}

    def load(self, path: Path) -> None:
        """Goes on from what ``save`` wrote, or changes nothing.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is damaged, or of another run or other options.
        """
        tree, _ = load_state(path, self._state(), check=partial(self._check_owner, path))
        record = jax.tree.map(_restored, self.record(), tree["record"])
        try:
            self._check_record(record, tree["model"])
        except ValueError as error:
            raise ValueError(
                f"{path} is a damaged state file: {error}; give another name to begin anew."
            ) from error
        self._stream.state = tree["model"]
        for name, value in record.items():
            owner, _, attribute = name.rpartition(".")
            setattr(attrgetter(owner)(self) if owner else self, attribute, value)
        self.resume()

    def _check_owner(self, path: Path, facts: Mapping[str, Any]) -> None:
        differ = [name for name, value in self._owner.items() if facts.get(name) != value]
        if differ:
            others = [name for name in self._owner if name != "model"]
            name = f", {quote(facts['run'])}" if facts.get("run") else ""
            raise OptionError(
                f"{path} is the state of a stream of another run{name}"
                f"{''.join(f', or with another {name}' for name in others)} "
                f"({', '.join(self._difference(name, facts) for name in differ)}); give what it "
                "was made with, or remove it to begin anew.",
                "state",
                *others,
            )

    def _difference(self, name: str, facts: Mapping[str, Any]) -> str:
        """What a state was made with, and what is here."""
        here = self._owner[name]
        if name == "model":
            name, here = "mechanism", mechanism_name(self._run.config.layers)
            if facts.get(name) == here:
                return "the weights of its model are others"
        return f"its {name} is {quote(facts.get(name))}, here {quote(here)}"

    def _check_record(self, record: Record, state: Any) -> None:
        for name, value in record.items():
            for leaf in map(np.asarray, jax.tree.leaves(value)):
                whole = leaf.dtype.kind == "i"
                if leaf.dtype.kind in "if" and (leaf < 0 if whole else np.isinf(leaf)).any():
                    expected = "whole numbers from 0 on" if whole else "finite numbers"
                    what = name.rpartition(".")[2].removeprefix("_")
                    raise ValueError(f"expected {what} as {expected}, got {quote(leaf.tolist())}")
        ages, num_steps = self.ages(record), record["num_steps"]
        if max(ages) > num_steps + self.max_extra_observations:
            raise ValueError(f"expected at least {max(ages)} observations, got {num_steps}")
        tokens = getattr(self._run.model, "tokens_per_observation", 1)
        for taken in count_observations(state):
            # A model counts in 32 bits, and begins at the lowest number after the highest. The
            # first observation may have fewer tokens.
            missing = (tokens * np.asarray(ages, np.int64) - taken) % 2**32
            if taken.shape != missing.shape or (missing >= tokens).any():
                raise ValueError(
                    f"expected a state after {quote(ages)} observations, got one after "
                    f"{quote((-(-taken // tokens)).tolist())}"
                )
        if not self.is_possible(record):
            raise ValueError("its counts and last values contradict each other")


def _restored(old: Any, array: NDArray[Any]) -> Any:
    """A leaf of a record as the stream holds it: a number of Python, or an array of its own."""
    return array.item() if isinstance(old, int | float) else array.copy()


@contextmanager
def full_streams_explained(what: str = "one") -> Iterator[None]:
    """Adds to the error of a full stream that a blank line begins ``what``, such as an episode."""
    try:
        yield
    except OptionError as error:
        raise OptionError(
            f"{error} A blank line begins {what}.", *error.options, **error.values
        ) from error


def stream_difference(model: Any, x: ArrayLike, *, every_step: bool = False) -> dict[str, Any]:
    """How far the outputs of steps are from those of the call.

    Args:
        model: one that streams.
        x: observations [B, T, ...].
        every_step: the call gives the outputs of all steps where this is asked of it, as that of a
            classifier.

    Returns:
        ``stream_max_error`` and ``stream_steps``, as ``Task.stream_error`` gives them.
    """
    x = jnp.asarray(x)
    parallel = np.asarray((_of_every_step if every_step else _outputs)(model, x))
    streamed = np.asarray(inference.unroll(model, x))
    assert parallel.shape == streamed.shape
    return {
        "stream_max_error": float(np.max(np.abs(streamed - parallel))),
        "stream_steps": x.shape[1],
    }


@nnx.jit
def _outputs(model: Any, x: jax.Array) -> jax.Array:
    y: jax.Array = model(x)
    return y


@nnx.jit
def _of_every_step(model: Any, x: jax.Array) -> jax.Array:
    y: jax.Array = model(x, every_step=True)
    return y
