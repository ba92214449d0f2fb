"""Run folders: what every task keeps beside the checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from flax_linattn.training.processes import check_same, on_main


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The options of a run, as its config.json holds them.

    Raises:
        ValueError: an option with named choices is none of them.
    """

    task: ClassVar[str]

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(hint))}, got "
                    f"{getattr(self, name)!r}."
                )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        raise NotImplementedError

    def resolve(self) -> Self:
        """Makes paths absolute."""
        paths: dict[str, Any] = {
            name: path.resolve() for name in self._paths() if (path := getattr(self, name))
        }
        return dataclasses.replace(self, **paths)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Back from ``to_json``.

        Raises:
            TypeError: a field is unknown to this version.
        """
        paths = {name: Path(values[name]) for name in cls._paths() if values.get(name)}
        return cls(**{**values, **paths})

    @classmethod
    def _paths(cls) -> list[str]:
        hints = get_type_hints(cls).items()
        return [name for name, hint in hints if Path in (hint, *get_args(hint))]

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """The options of the run in a folder.

        Raises:
            FileNotFoundError: there is no such run.
            ValueError: config.json is damaged or of another task.
        """
        found = read_task(run_dir)
        if found != cls.task:
            raise ValueError(f"{run_dir} is a run of task {found!r}, expected {cls.task!r}.")
        values = read_json(run_dir / CONFIG_FILE)
        values.pop("task")
        try:
            return cls.from_json(values)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{run_dir / CONFIG_FILE} does not fit this version: {error}."
            ) from error

    def write(self, run_dir: Path) -> None:
        """Writes config.json."""
        write_json(run_dir / CONFIG_FILE, {"task": self.task, **self.to_json()})

    def check_run_dir(self, run_dir: Path, resume: bool) -> None:
        """Checks that these options may run in a folder, and are those of all processes.

        Raises:
            ValueError: they differ between processes; the folder holds a run already, or one of
                other options than those to resume.
            FileNotFoundError: there is no run to resume.
        """
        check_same(self.to_json)
        on_main(partial(self._check_run_dir, run_dir, resume))

    def _check_run_dir(self, run_dir: Path, resume: bool) -> None:
        if run_dir.exists() and not run_dir.is_dir():
            raise ValueError(
                f"{run_dir} is a file, expected a folder; give another one with --run."
            )
        if not resume:
            if any((run_dir / "checkpoints").glob("step_*")):
                raise ValueError(
                    f"{run_dir} already holds a run; add --resume to go on with it, or give "
                    "another folder with --run."
                )
            return
        stored = type(self).read(run_dir).to_json()
        for name, value in self.to_json().items():
            if name != "epochs" and stored[name] != value:
                raise ValueError(
                    f"the run in {run_dir} has {name}={stored[name]!r}, got {value!r}; a resumed "
                    "run may change only its number of epochs. Start a new run for other options."
                )


CONFIG_FILE = "config.json"


def read_task(run_dir: Path) -> str:
    """The task of the run in a folder.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: config.json is damaged.
    """
    if not (run_dir / CONFIG_FILE).is_file():
        raise FileNotFoundError(
            f"{run_dir} is no run folder: it has no {CONFIG_FILE}; make one with "
            f"`flax-linattn train classify --run {run_dir}` or `flax-linattn train forecast`."
        )
    return str(read_json(run_dir / CONFIG_FILE).get("task"))


PROBLEM_FILE = "problem.json"


def checksum(arrays: Iterable[NDArray]) -> str:
    """A SHA-256 of arrays: shapes, dtypes and values."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def keep_problem(run_dir: Path, problem: dict[str, Any], resume: bool) -> None:
    """Writes problem.json, or on ``resume`` checks that the data are those that it was made of.

    Raises:
        ValueError: they are others.
    """
    path = run_dir / PROBLEM_FILE
    if not resume or not path.is_file():
        write_json(path, problem)
    elif read_json(path).get("checksum") != problem["checksum"]:
        raise ValueError(
            f"the data are not those that the run in {run_dir} began with; give the same files and "
            "rows, or start a new run."
        )


@contextmanager
def reading_problem(run_dir: Path) -> Iterator[dict[str, Any]]:
    """What problem.json holds; where it does not fit, the error names the file.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: it is damaged, or of another version.
    """
    path = run_dir / PROBLEM_FILE
    values = read_json(path)
    try:
        yield values
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not fit this version: {error!r}.") from error


@contextmanager
def reading_data(test_file: Path | None) -> Iterator[None]:
    """Where a run's own files are read, the error about a missing one tells how to give others.

    Raises:
        FileNotFoundError: the file is missing.
    """
    try:
        yield
    except FileNotFoundError as error:
        if test_file is not None:
            raise
        raise FileNotFoundError(
            "the data of the run are gone; put them back, or give others (evaluate --test-file, "
            f"stream --input): {error}"
        ) from None


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes values, and the folder where needed; a number that is not finite becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(_finite(values), indent=2, allow_nan=False) + "\n")
    os.replace(unfinished, path)


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Reads what ``write_json`` wrote.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: it is damaged.
    """
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: the run folder is not complete.") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not valid JSON ({error.msg}).") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected names and values, got {type(values).__name__}.")
    return values


def as_name(*parts: object) -> str:
    """Parts as a file name.

    Example:
        >>> as_name("ETTh1", "elementwise_series:order=2", 0)
        'ETTh1-elementwise_series-order-2-0'
    """
    return "-".join(re.sub(r"[^\w.]+", "-", str(part)) for part in parts)
