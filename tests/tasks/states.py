"""Streams of runs that nobody trained, state files that no stream wrote, and stored runs."""

import functools
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_linattn import data, tasks
from flax_linattn.tasks import Run, Streaming
from tests.tasks.commands import SIZES

OPTIONS: dict[str, dict[str, Any]] = {
    "classify": {},
    "offline-rl": {"num_episodes": 5},
    "forecast": {"context_length": 12, "horizon": 2, "split": "300/60/100"},
}


DEEP = "[" * 100_000
"""JSON that a parser gives up on."""


def untrained_run(name: str, **options: Any) -> Run:
    """A run as ``load_run`` gives it, with parameters as they were initialized."""
    task = tasks.get_task(name)
    config = task.Config.of(**SIZES, **OPTIONS[name], **options)
    data_spec = task.describe(task.load(config), config)
    return Run(task, config, data_spec, task.model(config, data_spec))


STORED = Path(__file__).parent / "stored" / "runs.tar.gz"


def extract_stored(folder: Path) -> None:
    """Runs that an earlier commit made; the CSV file of one has moved."""
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    path = folder / "forecast" / "config.json"
    config = json.loads(path.read_text()) | {"csv": str(folder / "waves.csv")}
    path.write_text(json.dumps(config))


def make_stream(run: Run) -> Streaming:
    return run.task.stream(run, run.task.StreamOptions())


@functools.cache
def lines_of(name: str, count: int) -> list[str]:
    """What a stream of that task reads."""
    if name == "classify":
        return [",".join(map(str, row)) for row in data.japanese_vowels()[1].series[0][:count]]
    if name == "offline-rl":
        one = data.pendulum().take([0])
        rows = zip(["", *one.rewards[: count - 1]], one.observations, strict=False)
        return [",".join(map(str, [reward, *seen])) for reward, seen in rows]
    series = data.etth1()
    rows = zip(series.times[:count], series.values, strict=False)
    return [",".join([str(t).replace("T", " "), *map(str, row)]) for t, row in rows]


def feed(stream: Streaming, lines: list[str]) -> None:
    for observation in stream.parse(lines):
        stream.cells(observation)


def saved_stream(name: str, path: Path) -> tuple[Streaming, Path]:
    """A stream after five rows, and its file."""
    stream = make_stream(untrained_run(name))
    feed(stream, lines_of(name, 5))
    stream.save(path)
    return stream, path


# -- files ---------------------------------------------------------------------------------


def entries_of(path: Path) -> dict[str, bytes]:
    """The entries of a zip file."""
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_entries(path: Path, entries: Any, compression: int = zipfile.ZIP_STORED) -> None:
    """A zip file of entries, a dict or pairs."""
    pairs = entries.items() if isinstance(entries, dict) else entries
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in pairs:
            file.writestr(name, content)


def npy(array: Any, **options: Any) -> bytes:
    """An array as ``numpy.save`` writes it."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npy_header(descr: str, shape: str, content: bytes = b"", version: int = 1) -> bytes:
    """A header that says anything, and something behind it."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode("latin-1")
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + content


def facts_of(entries: dict[str, bytes]) -> dict[str, Any]:
    return json.loads(str(np.load(io.BytesIO(entries["facts.npy"]))))


def with_facts(path: Path, entries: dict[str, bytes], facts: Any) -> None:
    """A state file that says something else; text is taken as it is."""
    text = facts if isinstance(facts, str) else json.dumps(facts)
    write_entries(path, {**entries, "facts.npy": npy(np.array(text))})


def with_record(path: Path, stream: Streaming, entries: dict[str, bytes], **values: Any) -> None:
    """A state file whose record holds other numbers, in the dtype and shape of the stream's."""
    leaves = jax.tree_util.tree_leaves_with_path(stream._state())
    places = {str(at[1].key): i for i, (at, _) in enumerate(leaves) if at[0].key == "record"}
    changed = {
        f"{places[name]}.npy": npy(np.full_like(leaves[places[name]][1], value))
        for name, value in values.items()
    }
    write_entries(path, {**entries, **changed})


def array_of(entries: dict[str, bytes], name: str) -> np.ndarray:
    return np.load(io.BytesIO(entries[name]))


def patch_zip(content: bytes, at: int, value: bytes, *, local: int | None = None) -> bytes:
    """Overwrites a field of every entry of the directory, and of every local header."""
    patched = bytearray(content)
    for mark, offset in ((b"PK\x01\x02", at), (b"PK\x03\x04", local)):
        start = patched.find(mark)
        while start >= 0 and offset is not None:
            patched[start + offset : start + offset + len(value)] = value
            start = patched.find(mark, start + 4)
    return bytes(patched)


def make_line(name: str, stream: Streaming) -> str:
    """One more row, later than all."""
    return lines_of(name, 300 if name == "forecast" else 2)[-1]
