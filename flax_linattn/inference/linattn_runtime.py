"""Runs a bundle of ``flax-linattn export`` with jax, NumPy and flatbuffers alone.

Copy this file next to your program; it imports nothing of flax_linattn or Flax::

    from linattn_runtime import Bundle
    session = Bundle("model.linattn").session()
    session.step({"price": 3.5}, time="2026-11-28 14:00")

A bundle holds programs (StableHLO), which run with the rights of this process: load bundles only
from sources that you trust. Checksums detect damage, not attacks.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import math
import zipfile
import zoneinfo
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as repr_short
from typing import Any

import jax
import jax.export
import numpy as np

FORMAT = 1
SIGNATURE, CHECKSUM, WEIGHTS = "signature.json", "signature.sha256", "weights.safetensors"
MAX_SIGNATURE_BYTES = 2**24
MAX_TIME = 1e100
State = dict[str, Any]


class BundleError(ValueError):
    """Error of a bundle, a state or an observation that cannot be used."""


class Bundle:
    """A model as compiled programs on flat, named states.

    Args:
        path: File of ``flax-linattn export``.

    Attributes:
        signature: Shapes, dtypes, names and versions, as JSON values.
        fingerprint: SHA-256 of the weights and of the layout of states and observations. Sessions
            of a bundle continue with every bundle of the same fingerprint, such as a later export
            of the same run.

    Raises:
        BundleError: If the file is not a bundle, is damaged, too new or expired, or was not
            exported for this device.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.signature, parts = _read_parts(self.path)
        _check_usable(self.path, self.signature)
        weights = _read_safetensors(parts[WEIGHTS])
        self._weights = [jax.device_put(weights[name]) for name in self.signature["weights"]]
        self.fingerprint = _fingerprint(self.signature)
        self._names = [leaf["name"] for leaf in self.signature["state"]]
        programs = {
            name.removesuffix(".bin"): jax.jit(jax.export.deserialize(bytearray(part)).call)
            for name, part in parts.items()
            if name.endswith(".bin")
        }
        self._init, self._step = programs["init_state"], programs["step"]
        self._prefill = {
            size: programs[f"prefill-{size}"] for size in self.signature["chunk_sizes"]
        }

    @functools.cached_property
    def initial_row(self) -> State:
        """State of one row before its first observation, as NumPy arrays."""
        return {name: np.asarray(value) for name, value in self.init_state().items()}

    @staticmethod
    def read_signature(path: str | Path) -> dict[str, Any]:
        """Reads and checks a bundle without loading it, even if it has expired."""
        return _read_parts(Path(path))[0]

    def init_state(self, batch_size: int = 1) -> State:
        """Returns the state of ``batch_size`` rows before their first observation, by name."""
        return self._named(self._init(np.ones(batch_size, bool)))

    def step(self, x: Any, state: State, mask: Any = None) -> tuple[Any, State]:
        """Processes one observation per row, in the scale and dtype of the model.

        Args:
            x: Observations, [B, ...], see ``signature["observation"]``.
            state: State of ``init_state``, ``step`` or ``prefill`` with B rows.
            mask: Boolean array [B]; where False, the row's state is unchanged.

        Returns:
            The outputs, [B, ...], and the new state. Rows beyond ``signature["max_length"]``
            observations are NaN.

        Raises:
            BundleError: If a shape or a dtype of the state differs.
        """
        x, leaves = self.check(x, state)
        mask = np.ones(len(x), bool) if mask is None else np.asarray(mask, bool)
        y, leaves = self._step(self._weights, leaves, x, mask)
        return y, self._named(leaves)

    def prefill(self, x: Any, state: State) -> tuple[Any, State]:
        """Processes observations [B, T, ...], T >= 1, in parallel chunks of ``chunk_sizes``.

        Returns:
            The output for the last observation, and the new state.

        Raises:
            BundleError: If a shape differs, or the bundle was exported without chunk sizes.
        """
        if not self._prefill:
            raise BundleError(f"{self.path} has no prefill program; export it with chunk_sizes.")
        x, leaves = self.check(x, state, "T, ")
        y = np.zeros(
            (len(x), *self.signature["output"]["shape"]), self.signature["output"]["dtype"]
        )
        start, length = 0, x.shape[1]
        while start < length:
            fitting = [size for size in self._prefill if size >= length - start]
            size = min(fitting, default=max(self._prefill))
            chunk = x[:, start : start + size]
            mask = np.arange(size)[None] < np.full((len(x), 1), chunk.shape[1])
            padding = [(0, 0), (0, size - chunk.shape[1]), *[(0, 0)] * (x.ndim - 2)]
            y, leaves = self._prefill[size](self._weights, leaves, y, np.pad(chunk, padding), mask)
            start += size
        return y, self._named(leaves)

    def session(self) -> Session:
        """Begins a stream of raw observations, with the names and units of the training data.

        Raises:
            BundleError: If the bundle does not describe raw observations.
        """
        return Session(self)

    def check(self, x: Any, state: State, time: str = "") -> tuple[Any, list[Any]]:
        """Checks the shapes of observations and state; returns observations and state leaves."""
        want = self.signature["observation"]
        x = np.asarray(x, want["dtype"])
        rank = 1 + bool(time)
        if (
            x.ndim != rank + len(want["shape"])
            or [*x.shape[rank:]] != want["shape"]
            or 0 in x.shape
        ):
            layout = f"[B, {time}{', '.join(map(str, want['shape']))}]".replace(", ]", "]")
            raise BundleError(f"expected observations as {layout}, got {[*x.shape]}.")
        for leaf in self.signature["state"]:
            value, expected = state.get(leaf["name"]), f"{leaf['dtype']}{[len(x), *leaf['shape']]}"
            layout = "nothing" if value is None else f"{value.dtype}{[*value.shape]}"
            if layout != expected:
                raise BundleError(
                    f"expected {leaf['name']} of the state as {expected}, got {layout}."
                )
        return x, [state[name] for name in self._names]

    def _named(self, leaves: Sequence[Any]) -> State:
        return dict(zip(self._names, leaves, strict=True))


class Session:
    """One stream: observations by name in, predictions by name out; see ``Bundle.session``.

    Time and memory of a step are constant if ``signature["max_length"]`` is null.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._task = bundle, bundle.signature["task"]
        if not self._task or not self._task["inputs"]:
            raise BundleError(
                f"{bundle.path} does not describe raw observations; call step with arrays as in "
                "signature['observation']."
            )
        self._context = self._task.get("context", 0)
        self._num_rows = 2 if self._context else 1
        self._initial = bundle.initial_row
        if self._context:
            self._initial = {k: v.repeat(2, 0) for k, v in self._initial.items()}
        self.reset()

    def reset(self) -> None:
        """Resets the session to the state before its first observation."""
        self.state: State = dict(self._initial)
        self.num_steps = 0
        first = self._task["inputs"][0]
        self._last: list[float] = first.get("initial", first.get("mean", []))

    def step(self, observation: Any, time: Any = None) -> dict[str, Any]:
        """Processes an observation, and returns predictions by name.

        Args:
            observation: Values by channel, or in the order of the channels; None and NaN are
                missing. A token is an integer. An event is the name of its type; None if there is
                a single type. An agent takes "reward", of its last action, and its observation.
            time: Time of an event, or of the observation if the model uses the calendar, as text
                or a datetime; a number for events without dates.

        Raises:
            BundleError: If the observation is invalid or the session full; no state changes.
        """
        x, state, columns = self.prepare(observation, time)
        return self.finish(columns, *self._bundle.step(x, state))

    def prepare(self, observation: Any, time: Any = None) -> tuple[Any, State, list[float]]:
        """Prepares the arguments of ``Bundle.step``, to step many sessions in one batch.

        Returns:
            Observations and state of the rows of this session, and values for ``finish``.

        Raises:
            BundleError: If the observation is invalid, or the session is full.
        """
        limit = self._bundle.signature["max_length"]
        if limit is not None and not self._context and self.num_steps >= limit:
            raise BundleError(f"the session is full after {limit} observations; reset it.")
        columns, last = self._columns(observation, time)
        dtype = self._bundle.signature["observation"]["dtype"]
        with np.errstate(over="ignore"):  # refused below
            x = np.asarray(columns, dtype)
        if not np.isfinite(x).all():
            raise BundleError(
                f"expected values in the range of {dtype}, got {repr_short(observation)}."
            )
        ages, state = np.array(self._ages(self.num_steps + 1)), self.state
        fresh, part = ages == 1, self._task["inputs"][0]
        if self._context and fresh.any():  # a row is reset
            state = {
                name: np.where(fresh.reshape(-1, *[1] * (value.ndim - 1)), value, state[name])
                for name, value in self._initial.items()
            }
        x = np.repeat(x[None], self._num_rows, 0)
        if part["kind"] == "decision":  # its time, and whether the last action is known
            x[:, 0], x[:, 1] = ages - 1 if part["clock"] == "context" else self.num_steps, ~fresh
        return x, state, last

    def finish(self, last: list[float], y: Any, state: State) -> dict[str, Any]:
        """Stores the new state after ``prepare`` and ``Bundle.step``, and returns predictions.

        Raises:
            BundleError: If an output is NaN or infinite; the session is unchanged.
        """
        row = int(np.argmax(self._ages(self.num_steps + 1)))
        output = np.asarray(y[row], np.float64)
        if not np.isfinite(output).all():
            raise BundleError(
                "the output of the model is NaN or infinite; check the scale of the observation."
            )
        part = self._task["inputs"][0]
        if part["kind"] == "decision":
            taken = [output.argmax()] if part["is_discrete"] else output
            last = [last[0], *map(float, taken)]
        self.state, self._last, self.num_steps = state, last, self.num_steps + 1
        return _outputs(self._task["outputs"], output)

    def to_bytes(self) -> bytes:
        """Returns the session as bytes: a few kilobytes if the state has constant size."""
        record = {
            "bundle": self._bundle.fingerprint,
            "num_steps": self.num_steps,
            "last": self._last,
        }
        text = json.dumps(record).encode()
        arrays = [np.asarray(self.state[name]).tobytes() for name in self._initial]
        return b"".join([len(text).to_bytes(4, "little"), text, *arrays])

    def from_bytes(self, content: bytes) -> None:
        """Restores a session of the same bundle from the bytes of ``to_bytes``.

        Raises:
            BundleError: If the bytes are damaged, or belong to another bundle.
        """
        try:
            begin = 4 + int.from_bytes(content[:4], "little")
            record = json.loads(content[4:begin])
            steps, last = int(record["num_steps"]), [float(value) for value in record["last"]]
            is_own = record["bundle"] == self._bundle.fingerprint
        except Exception as error:  # untrusted bytes may raise any error
            raise BundleError(f"expected a session, got other bytes ({error}).") from error
        if not is_own:
            raise BundleError("the session belongs to another bundle; begin a new session.")
        if len(last) != len(self._last) or steps < 0 or not all(map(math.isfinite, last)):
            raise BundleError("expected a session, got other bytes (another record).")
        if len(content) != begin + sum(value.nbytes for value in self._initial.values()):
            raise BundleError("the bytes of the session are cut, or too long.")
        state: State = {}
        for name, value in self._initial.items():
            array = np.frombuffer(content, value.dtype, value.size, begin)
            state[name], begin = array.reshape(value.shape), begin + value.nbytes
        self.state, self.num_steps, self._last = state, steps, last

    def _columns(self, observation: Any, time: Any) -> tuple[Any, list[float]]:
        """Returns the input of the model for an observation, and the last value of each channel."""
        columns: list[float] = []
        given: list[float | None] = []
        last = self._last
        for part in self._task["inputs"]:
            if part["kind"] == "token":
                return _token(part["count"], observation), last
            if part["kind"] == "values":
                given = _values(part["names"], observation)
                last = [old if v is None else v for v, old in zip(given, last, strict=True)]
                scale = zip(last, part["mean"], part["std"], strict=True)
                columns += [(value - mean) / std for value, mean, std in scale]
            elif part["kind"] == "flags":
                columns += [float(v is None) for v in given]
            elif part["kind"] == "event":
                return _event(part, observation, time, last if self.num_steps else None)
            elif part["kind"] == "decision":
                return self._decision(part, observation)
            else:
                columns += _calendar(part["names"], _local(time, part["time_zone"]))
        return columns, last

    def _decision(self, part: Mapping[str, Any], observation: Any) -> Any:
        """Columns of a step of an episode, and the return-to-go before the last action."""
        reward, *values = _values(part["names"], observation)
        if None in values or (reward is None and self.num_steps):
            missing = "reward" if reward is None else "numbers of the observation"
            raise BundleError(f"expected the {missing}, got {repr_short(observation)}.")
        if part["max_steps"] is not None and self.num_steps >= part["max_steps"]:
            raise BundleError(
                f"an episode has at most {part['max_steps']} steps; reset the session."
            )
        total, *action = self._last
        total -= reward if reward is not None and self.num_steps else 0.0
        scale = zip(values, part["mean"], part["std"], strict=True)
        scaled = [(v - mean) / std for v, mean, std in scale if v is not None]
        return [0.0, 0.0, total / part["return_scale"], *scaled, *action], [total, *action]

    def _ages(self, count: int) -> list[int]:
        """Number of observations in each row; two rows are reset half a context apart."""
        if not self._context:
            return [count]
        half = self._context // 2
        second = (count - 1 - half) % self._context + 1 if count > half else 1
        return [(count - 1) % self._context + 1, second]


def _values(names: Sequence[str], observation: Any) -> list[float | None]:
    """Returns values in the order of the channels; None is a missing value."""
    given = [] if isinstance(observation, bytes) else observation
    if isinstance(given, Mapping):
        if unknown := [str(name) for name in given if name not in names]:
            raise BundleError(
                f"unknown channel {repr_short(unknown[0])}; expected {', '.join(names)}."
            )
        given = [given.get(name) for name in names]
    try:
        values = [None if v is None or math.isnan(v) else float(v) for v in given]
    except (OverflowError, TypeError):  # an integer beyond float64, or not a number
        values = []
    if len(values) != len(names) or math.inf in (abs(v) for v in values if v is not None):
        expected = f"finite numbers for {', '.join(names)}"
        raise BundleError(f"expected {expected}, got {repr_short(observation)}.")
    return values


def _token(count: int, observation: Any) -> int:
    is_integer = isinstance(observation, int | np.integer) and not isinstance(observation, bool)
    if not is_integer or not 0 <= observation < count:
        raise BundleError(
            f"expected an integer from 0 to {count - 1}, got {repr_short(observation)}."
        )
    return int(observation)


def _event(part: Mapping[str, Any], name: Any, time: Any, last: list[float] | None) -> Any:
    """Columns of an event, and the times of the first event and of this event."""
    names = part["names"]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        raise BundleError(f"expected an event type ({', '.join(names)}), got {repr_short(name)}.")
    if part["dates"]:
        now = _local(time, "UTC").timestamp()
    else:
        try:
            now = math.nan if isinstance(time, str | bytes) else float(time)
        except (OverflowError, TypeError, ValueError):
            now = math.nan
        if not abs(now) <= MAX_TIME:
            expected = "expected the time of the event as a number"
            raise BundleError(f"{expected}, got {repr_short(time)}.")
    begin, before = last or (now, now)
    if now < before:
        raise BundleError(f"expected times that do not decrease, got {repr_short(time)}.")
    gap = math.log(max(now - before, part["resolution"]) / part["scale"]) if last else 0.0
    turns = [now / period for period in part["periods"]]
    turns += [(now - begin) / period for period in part["clock"]]
    angles = [2 * math.pi * (turn % 1.0) for turn in turns]
    waves = [*map(math.cos, angles), *map(math.sin, angles)]
    return [gap, float(bool(last)), float(names.index(name)), *waves], [begin, now]


def _local(time: Any, zone: str | None) -> datetime.datetime:
    """Converts a time to the time zone of the training data."""
    try:
        time = datetime.datetime.fromisoformat(time) if isinstance(time, str) else time
        if (zone is None) == (time.tzinfo is None):
            return time if zone is None else time.astimezone(zoneinfo.ZoneInfo(zone))
    except zoneinfo.ZoneInfoNotFoundError as error:
        raise BundleError(f"unknown time zone {zone}; install the package tzdata.") from error
    except (AttributeError, OverflowError, ValueError):
        pass
    offset = "without an offset from UTC" if zone is None else "with its offset from UTC"
    example = "2026-11-28T14:00" + ("" if zone is None else "+01:00")
    raise BundleError(f"expected a time {offset}, such as {example}, got {repr_short(time)}.")


def _calendar(names: Sequence[str], time: datetime.datetime) -> list[float]:
    """Calendar features of a time, each scaled to [-0.5, 0.5]."""
    places = {
        "minute": time.minute / 59,
        "hour": time.hour / 23,
        "weekday": time.weekday() / 6,
        "day": (time.day - 1) / 30,
        "day of year": (time.timetuple().tm_yday - 1) / 365,
        "week": (time.isocalendar().week - 1) / 52,
        "month": (time.month - 1) / 11,
    }
    return [places[name] - 0.5 for name in names]


def _outputs(part: Mapping[str, Any], output: Any) -> dict[str, Any]:
    """Predictions by name: class probabilities, targets in their units, or logits."""
    if part["kind"] == "classes":
        weights = np.exp(output - output.max())
        p = dict(zip(part["names"], (weights / weights.sum()).tolist(), strict=True))
        return {"prediction": max(p, key=p.__getitem__), **{f"p({n})": v for n, v in p.items()}}
    if part["kind"] == "targets":
        values = output.ravel() * np.asarray(part["std"]) + np.asarray(part["mean"])
        return dict(zip(part["columns"], values.tolist(), strict=True))
    return {"logits": output}


def _check_usable(path: Path, signature: Mapping[str, Any]) -> None:
    """Refuses a bundle for other devices, or a bundle that has expired."""
    platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if platform not in signature["platforms"]:
        known = ", ".join(signature["platforms"])
        raise BundleError(f"{path} was exported for {known}; export it again for {platform}.")
    until, version = signature["readable_until"], signature["versions"]["jax"]
    if version != jax.__version__ and datetime.date.today().isoformat() > until:
        raise BundleError(
            f"{path} expired on {until}: JAX {jax.__version__} may not read programs of JAX "
            f"{version}. Export the run again, or install jax=={version}."
        )


def _fingerprint(signature: Mapping[str, Any]) -> str:
    """SHA-256 of the parts on which sessions depend, without dates, versions and platforms."""
    names = ("observation", "output", "state", "state_format", "max_length", "task")
    known = (signature[name] for name in names if name in signature)  # no format in early bundles
    parts = [signature["parts"][WEIGHTS]["sha256"], *known]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read_parts(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Reads and checks the signature and the other parts of a bundle."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            if any(entry.compress_type for entry in archive.infolist()):
                raise ValueError("a part is compressed")
            if sizes[SIGNATURE] > MAX_SIGNATURE_BYTES:
                raise ValueError("its signature is too large")
            text = archive.read(SIGNATURE)
            signature = json.loads(text)
            if signature["format"] > FORMAT:
                raise ValueError(f"format {signature['format']} needs a newer linattn_runtime.py")
            known = {name: part["sha256"] for name, part in signature["parts"].items()}
            if {*sizes} != {*known, SIGNATURE, CHECKSUM}:
                raise ValueError("a part is missing or unknown")
            parts = {name: archive.read(name) for name in known}
            known[SIGNATURE] = archive.read(CHECKSUM).decode()
        for name, part in {SIGNATURE: text, **parts}.items():
            if hashlib.sha256(part).hexdigest() != known[name]:
                raise ValueError(f"{name} was changed")
    except FileNotFoundError:
        raise BundleError(f"the bundle {path} does not exist.") from None
    except Exception as error:  # untrusted bytes may raise any error
        reason = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise BundleError(f"{path} is not a bundle, or is damaged: {reason}.") from error
    return signature, parts


def _read_safetensors(content: bytes) -> dict[str, Any]:
    """Reads the arrays of a safetensors file, by name."""
    begin = 8 + int.from_bytes(content[:8], "little")
    arrays = {}
    for name, entry in json.loads(content[8:begin]).items():
        kind, size = entry["dtype"].rstrip("0123456789"), entry["dtype"].lstrip("BOLFUI")
        prefix = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "BOOL": "bool"}[kind]
        first, last = entry["data_offsets"]
        part = content[begin + first : begin + last]
        dtype = jax.numpy.dtype(f"{prefix}{size}")
        arrays[name] = np.frombuffer(part, dtype).reshape(entry["shape"])
    return arrays
