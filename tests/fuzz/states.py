"""Files of streams' states, which a stranger or a failing disk made of good ones."""

import contextlib
import json
import random
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_linattn import inference
from tests.fuzz.damage import corrupted
from tests.fuzz.subject import Case, Subject
from tests.tasks import states

VALUES = [
    None, True, -5, 0, 1.5, 10**30, -(10**400), float("nan"), float("inf"), "", "x" * 50, [], [[]],
    {}, [1.0] * 12, [1.0] * 7, ["1"] * 7, "2016-07-01", "2016-07-01T00:00+02:00", "9999-12-31",
]  # fmt: skip
TEXTS = ["[]", "null", "{", states.DEEP, '{"a":' * 5000, '"x"', "1e999", "-"]
DTYPES = ["'<f8'", "'|O'", "'>f4'", "'|V4'", "'<U9999999'", "[('a', '<f4')]", "'|V0'", "(" * 4000]
SHAPES = ["(100000000000,)", "(-1,)", "()", "(1,)", "('a',)", "16", "(2, 3" + ", 1" * 70 + ")"]
NAMES = ["-1.npy", "../0.npy", "a", "00.npy", "b/"]
METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
FIELDS = [(6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (42, 4)]
"""Of an entry of a zip file's directory: place and size."""
MEGABYTES = 50
"""Of Python's memory, for one file."""


class States(Subject):
    """What a stream loads, and ``describe_state`` reads."""

    counts = (120, 3_000)
    most_valid = 0.5
    seconds = 5.0
    megabytes = 2000  # of compiled programs
    longest = 2000

    @staticmethod
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Duplicate name")
            yield

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.good = {n: states.saved_stream(n, folder / f"{n}.npz") for n in states.OPTIONS}

    def samples(self) -> Iterator[Case]:
        return (self.case(name, path) for name, (_, path) in self.good.items())

    def damage(self, draw: random.Random) -> Case:
        name = draw.choice(list(self.good))
        path = self.folder / "strange.npz"
        mutate(draw, self.good[name][1], path)
        return self.case(name, path)

    def case(self, name: str, path: Path) -> Case:
        return Case(name, path, lambda: self.load(name, path))

    def load(self, name: str, path: Path) -> None:
        stream, good = self.good[name]
        tracemalloc.start()
        try:
            try:
                inference.describe_state(path)
            except ValueError as error:
                assert str(path) in str(error), error
            stream.load(path)
            check_valid(name, stream)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            stream.load(good)
            assert peak < 1_000_000 * MEGABYTES


def check_valid(name: str, stream: Any) -> None:
    """What was loaded is a state that goes on."""
    assert type(stream.num_steps) is int and stream.num_steps >= 0 <= stream.num_breaks
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(stream._stream.state))
    after = states.make_line(name, stream)
    try:
        (observation,) = stream.parse([after])
        assert stream.cells(observation)
    except ValueError as error:  # numbers that are there and yet too large, or the end of time
        assert "NaN" in str(error) or "after" in str(error)


def mutate(draw: random.Random, good: Path, path: Path) -> None:
    """Writes a file that has its bytes, its entries, one array or its facts changed."""
    entries = states.entries_of(good)
    match draw.randrange(4):
        case 0:
            path.write_bytes(corrupted(good.read_bytes(), draw))
        case 1:
            mutate_zip(draw, entries, path)
        case 2:
            which, new = mutate_array(draw, entries)
            states.write_entries(path, {**entries, which: new})
        case 3:
            states.with_facts(path, entries, mutate_facts(draw, entries))


def mutate_zip(draw: random.Random, entries: dict[str, bytes], path: Path) -> None:
    pairs = list(entries.items())
    which = draw.randrange(len(pairs))
    name, content = pairs[which]
    match draw.randrange(7):
        case 0:
            del pairs[which]
        case 1:
            pairs.append((f"{draw.randrange(30)}.npz", content))
        case 2:
            pairs[which] = (draw.choice(NAMES), content)
        case 3:
            pairs[which] = (name, corrupted(content, draw))
        case 4:
            pairs[which] = (name, draw.choice(pairs)[1])
    states.write_entries(path, pairs, draw.choice(METHODS) if draw.random() < 0.5 else METHODS[0])
    if draw.random() < 0.5:  # a field of the directory, and perhaps of the local headers
        at, size = draw.choice(FIELDS)
        local = at - 2 if draw.random() < 0.5 and at < 30 else None
        value = draw.choice((draw.randbytes(size), (1 << draw.randrange(8)).to_bytes(size)))
        path.write_bytes(states.patch_zip(path.read_bytes(), at, value, local=local))


def mutate_array(draw: random.Random, entries: dict[str, bytes]) -> tuple[str, bytes]:
    which = draw.choice([name for name in entries if name[0].isdigit()])
    array = states.array_of(entries, which)
    match draw.randrange(4):
        case 0:
            dtype, shape = draw.choice(DTYPES), draw.choice(SHAPES)
            return which, states.npy_header(dtype, shape, draw.randbytes(64), draw.randint(1, 3))
        case 1:
            return which, states.npy(np.array([None, {}], object), allow_pickle=True)
        case 2:
            noise = np.frombuffer(draw.randbytes(array.nbytes), array.dtype)
            return which, states.npy(noise.reshape(array.shape))
    return which, states.npy(array[..., None])


def mutate_facts(draw: random.Random, entries: dict[str, bytes]) -> Any:
    facts = states.facts_of(entries)
    key = draw.choice([*facts, "spare"])
    match draw.randrange(6):
        case 0:
            facts.pop(key, None)
        case 1:
            return draw.choice(TEXTS)
        case 2:
            return corrupted(json.dumps(facts).encode(), draw).decode("latin-1")
        case _:
            facts[key] = draw.choice(VALUES)
    return facts
