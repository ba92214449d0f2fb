"""``Streaming``: a run's model over a stream of observations, for every task."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError, quote
from flax_linattn.data import Standardizer
from flax_linattn.inference.capacity import count_observations
from flax_linattn.inference.model import StreamingModel
from flax_linattn.inference.saved import load_state, save_state
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run

Record = Mapping[str, Any]
"""Values that a stream saves besides the model's state: trees of numbers and arrays, by name."""


class Streaming(abc.ABC):
    """Parses lines to observations, steps a run's model, and formats its output as cells.

    A state file holds the state of the model, the ``record`` of the stream, and a fingerprint of
    the model and the ``options``: a stream resumes only with the same model and options.

    Args:
        run: The trained run.
        stream: Stream of its model.
        header: Column names of the output, see ``cells``.
        **options: Options that the state depends on, as JSON values.

    Attributes:
        header: Column names of the output.
        record_attributes: Further attributes in the record, such as "agent.steps": numbers, arrays
            or trees of them, of constant shapes and dtypes.
        num_steps: Number of observations so far, in all sessions.
        num_breaks: Number of other rows so far, such as blank lines that begin a new sequence.
        run_dir: Run folder, which a state file names; None if it is not known.
        from_start: Whether the input starts from the first row of the stream, rather than after
            its last processed row.
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
        """Parses observations from lines, one after another.

        Args:
            lines: Lines without newlines and comments; see ``tasks.lines.Rows``.

        Raises:
            ValueError: If a line is not an observation; the caller adds the line number.
        """

    @property
    def comments(self) -> bool:
        """Whether lines may be comments; see ``data.tables.cells.is_comment``."""
        return True

    @abc.abstractmethod
    def cells(self, observation: Any) -> Sequence[Any] | None:
        """Processes an observation, and counts it in ``num_steps`` or ``num_breaks``.

        Returns:
            The cells of a line of output, numbers in the dtype that they were computed in; None for
            no output, as where a sequence begins.

        Raises:
            ValueError: If the observation does not match the model, or the state has no capacity
                left.
        """

    def source(self) -> Iterator[Any] | None:
        """Observations to use instead of input lines, if the options ask for them."""
        return None

    def record(self) -> Record:
        """Returns the values to save besides the model's state, by attribute name."""
        names = ("num_steps", "num_breaks", "_stream.num_steps", *self.record_attributes)
        return {name: attrgetter(name)(self) for name in names}

    def is_possible(self, record: Record) -> bool:
        """Whether the numbers of a record are consistent with each other; all are valid by type."""
        return True

    def resume(self) -> None:  # noqa: B027  (most have nothing to do)
        """Sets attributes that are not in the record, after the record was restored."""

    def ages(self, record: Record) -> Sequence[int]:
        """Number of observations in the state of each row of the model's stream, by a record.

        A state file whose model state has other counts is refused.
        """
        return [record["_stream.num_steps"]]

    def num_observations(self, record: Record) -> int:
        """Maximum number of observations of a row by a record: one for each line, or more."""
        return int(record["num_steps"])

    @property
    def num_rows(self) -> int:
        """Number of rows processed so far, in all sessions."""
        return self.num_steps + self.num_breaks

    @property
    def state_bytes(self) -> int:
        """Size of the model's state in bytes."""
        return inference.state_bytes(self._stream.state)

    @property
    def last_time(self) -> datetime | int | None:
        """Time of the last observation, if observations have times."""
        return None

    def is_processed(self, number: int, observation: Any) -> bool:
        """Whether the stream has processed a row of an input that starts from its first row.

        Args:
            number: Number of the row, from 1.
            observation: Observation of the row.
        """
        return number <= self.num_rows

    def last_cells(self) -> Iterator[Sequence[Any]]:
        """Yields further lines of output at the end of the input."""
        yield from ()

    def end(self) -> str | None:
        """Returns a note to print at the end of the stream, or None."""
        return None

    def plot(self, path: Path) -> None:
        """Plots the last outputs to a PNG file.

        Raises:
            ValueError: If the stream has no figure, or Matplotlib is not installed.
        """
        raise OptionError("this stream has no figure; remove figure=....", "figure")

    @property
    def has_figure(self) -> bool:
        """Whether the stream can plot its last outputs."""
        return type(self).plot is not Streaming.plot

    def interface(self) -> dict[str, Any] | None:
        """Describes raw observations and outputs of the stream for a bundle.

        Returns:
            JSON values that ``inference.linattn_runtime.Session`` interprets: "inputs", "outputs"
            and, for two rows that restart in turn, "context"; None if it cannot interpret them.
        """
        return None

    @property
    def without_restarts(self) -> str:
        """Setting with which the state does not restart after a context; "" if it never does."""
        return ""

    def exported_model(self) -> StreamingModel:
        """Returns the model of a bundle, whose outputs are described by ``interface``."""
        return cast(StreamingModel, self._run.model)

    def export(
        self, path: Path, metadata: Mapping[str, Any], format: str = "bundle", **options: Any
    ) -> dict[str, Any]:
        """Writes the model of the stream; see ``inference.export``.

        Args:
            path: File to write.
            metadata: JSON values about the run, such as the name of its task.
            format: "bundle", "c" for a header of C99, or "onnx".
            **options: Options of the function that writes the format.
        """
        spec = self._run.data_spec.observation
        dtype = jnp.float32 if spec is None else spec.dtype
        model, own = self.exported_model(), self._run.model
        is_described = format == "bundle" or model is own  # else in a bundle alone
        interface = (self.interface() if is_described else None) or {"inputs": None}
        options["task"] = {**metadata, **interface}
        if format != "bundle" and self.without_restarts:
            raise OptionError(
                f"expected {self.without_restarts} for C and ONNX, whose steps do not begin again "
                f"after a context; set {self.without_restarts}, or export a bundle.",
                self.without_restarts.partition("=")[0],
                "format",
            )
        observation = jax.ShapeDtypeStruct((1, *own.observation_shape), dtype)
        if format == "c":
            return dict(inference.export_c(path, own, observation, **options))
        if format == "onnx":
            return inference.export_onnx(path, own, observation, **options)
        max_length = self._stream.max_length
        return inference.export(path, model, observation, max_length=max_length, **options)

    def save(self, path: Path) -> None:
        """Saves the state of the stream atomically: a kill leaves the previous file or the new one.

        Raises:
            ValueError: If the state holds NaN; the previous file stays.
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
        """The tree of arrays to save: the model's state and the record."""
        return {"model": self._stream.state, "record": jax.tree.map(np.asarray, self.record())}

    def load(self, path: Path) -> None:
        """Resumes from a file of ``save``, or changes nothing if that fails.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file is damaged, or belongs to another run or other options.
        """
        tree, metadata = load_state(path, self._state(), check=partial(self._check_owner, path))
        record = jax.tree.map(_restore_leaf, self.record(), tree["record"])
        try:
            self._check_record(record, tree["model"], metadata)
        except ValueError as error:
            raise ValueError(
                f"{path} is a damaged state file: {error}. Choose another file for a new stream."
            ) from error
        self._stream.state = tree["model"]
        for name, value in record.items():
            owner, _, attribute = name.rpartition(".")
            setattr(attrgetter(owner)(self) if owner else self, attribute, value)
        self.resume()

    def _check_owner(self, path: Path, metadata: Mapping[str, Any]) -> None:
        names = [name for name, value in self._owner.items() if metadata.get(name) != value]
        if names:
            run = f" of {quote(metadata['run'])}" if metadata.get("run") else ""
            differences = ", and ".join(self._difference(name, metadata) for name in names)
            raise OptionError(
                f"{path} is the state of another stream{run}: {differences}. Use the run and the "
                "options that it was saved with, or choose another file for a new stream.",
                "state",
                *(name for name in names if name != "model"),
            )

    def _difference(self, name: str, metadata: Mapping[str, Any]) -> str:
        """Describes how a state file differs from this stream."""
        expected = self._owner[name]
        if name == "model":
            name, expected = "mechanism", mechanism_name(self._run.config.layers)
            if metadata.get(name) == expected:
                return "its model has other weights"
        return f"its {name} is {quote(metadata.get(name))}, expected {quote(expected)}"

    def _check_record(self, record: Record, state: Any, metadata: Mapping[str, Any]) -> None:
        initial = self._stream.initial_state(1)
        for leaf, first in zip(jax.tree.leaves(state), jax.tree.leaves(initial), strict=True):
            # The maximum over no token is infinite; all else that a state holds is finite.
            if not np.isin(_infinities(leaf), _infinities(first)).all():
                raise ValueError("expected finite numbers in the state of the model, got infinity")
        for name, value in record.items():
            for leaf in map(np.asarray, jax.tree.leaves(value)):
                is_integer = leaf.dtype.kind == "i"
                if leaf.dtype.kind in "if" and (leaf < 0 if is_integer else np.isinf(leaf)).any():
                    expected = "integers of at least 0" if is_integer else "finite numbers"
                    short = name.rpartition(".")[2].removeprefix("_")
                    raise ValueError(f"expected {short} as {expected}, got {quote(leaf.tolist())}")
        ages, num_observations = self.ages(record), self.num_observations(record)
        if max(ages) > num_observations:
            raise ValueError(f"expected at least {max(ages)} observations, got {num_observations}")
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
        num_rows = record["num_steps"] + record["num_breaks"]
        for name, count in {"num_steps": record["num_steps"], "rows": num_rows}.items():
            if metadata.get(name) != count:
                raise ValueError(f"expected {name} {count}, got {quote(metadata.get(name))}")


def _infinities(array: Any) -> NDArray[Any]:
    """Returns the distinct infinite values of an array, none for integers."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return np.zeros(0)
    values = np.asarray(array, np.float32)
    return np.unique(values[np.isinf(values)])


def _restore_leaf(old: Any, array: NDArray[Any]) -> Any:
    """Converts a loaded leaf of a record to the type of the old one: a Python number or array."""
    return array.item() if isinstance(old, int | float) else array.copy()


@contextmanager
def explain_full_stream(unit: str = "sequence") -> Iterator[None]:
    """Adds to the error of a full stream that a blank line begins a new unit."""
    try:
        yield
    except OptionError as error:
        raise OptionError(
            f"{error} A blank line begins a new {unit}.", *error.options, **error.values
        ) from error


def describe_channels(names: Sequence[str], scale: Standardizer) -> dict[str, Any]:
    """Describes the channels of an observation and their scale; see ``Streaming.interface``."""
    mean, std = scale.mean.tolist(), scale.std.tolist()
    return {"kind": "values", "names": list(names), "mean": mean, "std": std}


def stream_difference(model: Any, x: ArrayLike, *, every_step: bool = False) -> dict[str, Any]:
    """Compares the outputs of a model's steps with the outputs of its call.

    Args:
        model: Model that streams.
        x: Observations, [B, T, ...].
        every_step: Pass ``every_step=True`` to the call, for classifiers.

    Returns:
        ``stream_max_error`` and ``stream_steps``, as ``Task.stream_error`` returns them.
    """
    x = jnp.asarray(x)
    parallel = np.asarray((_compute_every_output if every_step else _compute_output)(model, x))
    streamed = np.asarray(inference.unroll(model, x))
    assert parallel.shape == streamed.shape
    return {
        "stream_max_error": float(np.max(np.abs(streamed - parallel))),
        "stream_steps": x.shape[1],
    }


@nnx.jit
def _compute_output(model: Any, x: jax.Array) -> jax.Array:
    y: jax.Array = model(x)
    return y


@nnx.jit
def _compute_every_output(model: Any, x: jax.Array) -> jax.Array:
    y: jax.Array = model(x, every_step=True)
    return y
