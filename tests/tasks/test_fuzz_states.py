"""State files that a stranger, or a failing disk, made of good ones: refused, or valid."""

import json
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import inference
from tests.tasks import states

VALUES = [
    None, True, -5, 0, 1.5, 10**30, -(10**400), float("nan"), float("inf"), "", "x" * 50, [], [[]],
    {}, [1.0] * 12, [1.0] * 7, ["1"] * 7, "2016-07-01", "2016-07-01T00:00+02:00", "9999-12-31",
]  # fmt: skip
DTYPES = ["'<f8'", "'|O'", "'>f4'", "'|V4'", "'<U9999999'", "[('a', '<f4')]", "'|V0'", "(" * 4000]
SHAPES = ["(100000000000,)", "(-1,)", "()", "(1,)", "('a',)", "16", "(2, 3" + ", 1" * 70 + ")"]


def mutate_bytes(rng: Any, content: bytes) -> bytes:
    changed = bytearray(content)
    start = int(rng.integers(len(changed)))
    match int(rng.integers(5)):
        case 0:
            for at in rng.integers(len(changed), size=rng.integers(1, 9)):
                changed[at] ^= 1 << int(rng.integers(8))
        case 1:
            del changed[start:]
        case 2:
            changed += rng.bytes(int(rng.integers(1, 100)))
        case 3:
            changed[start : start + 20] = b"\0" * 20
        case 4:
            changed[start:start] = changed[start : start + int(rng.integers(1, 200))]
    return bytes(changed)


def mutate_zip(rng: Any, entries: dict[str, bytes], path: Path) -> None:
    pairs = list(entries.items())
    which = int(rng.integers(len(pairs)))
    entry_name, content = pairs[which]
    match int(rng.integers(7)):
        case 0:
            del pairs[which]
        case 1:
            pairs.append((f"{int(rng.integers(30))}.npz", content))
        case 2:
            pairs[which] = (str(rng.choice(["-1.npy", "../0.npy", "a", "00.npy", "b/"])), content)
        case 3:
            pairs[which] = (entry_name, mutate_bytes(rng, content))
        case 4:
            pairs[which] = (entry_name, pairs[int(rng.integers(len(pairs)))][1])
        case _:
            pass
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    states.write_entries(path, pairs, methods[int(rng.integers(4)) * int(rng.integers(2))])
    if rng.integers(2):  # a field of the directory, and perhaps of the local headers
        at, size = [(6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (42, 4)][
            int(rng.integers(8))
        ]
        local = at - 2 if rng.integers(2) and at < 30 else None
        value = rng.bytes(size) if rng.integers(2) else (1 << int(rng.integers(8))).to_bytes(size)
        path.write_bytes(states.patch_zip(path.read_bytes(), at, value, local=local))


def mutate_array(rng: Any, entries: dict[str, bytes]) -> tuple[str, bytes]:
    which = str(rng.choice([name for name in entries if name[0].isdigit()]))
    array = states.array_of(entries, which)
    match int(rng.integers(4)):
        case 0:
            dtype, shape = str(rng.choice(DTYPES)), str(rng.choice(SHAPES))
            new = states.npy_header(dtype, shape, rng.bytes(64), int(rng.integers(1, 4)))
        case 1:
            new = states.npy(np.array([None, {}], object), allow_pickle=True)
        case 2:
            new = states.npy(
                np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
            )
        case _:
            new = states.npy(array[..., None])
    return which, new


def mutate_facts(rng: Any, entries: dict[str, bytes]) -> Any:
    facts = states.facts_of(entries)
    key = str(rng.choice([*facts, "spare"]))
    match int(rng.integers(6)):
        case 0:
            facts.pop(key, None)
        case 1:
            return str(
                rng.choice(["[]", "null", "{", states.DEEP, '{"a":' * 5000, '"x"', "1e999", "-"])
            )
        case 2:
            return mutate_bytes(rng, json.dumps(facts).encode()).decode("latin-1")
        case _:
            facts[key] = VALUES[int(rng.integers(len(VALUES)))]
    return facts


def mutate(rng: Any, good: Path, path: Path) -> None:
    """A file that a stranger, or a failing disk, made of a good one."""
    entries = states.entries_of(good)
    match int(rng.integers(4)):
        case 0:
            path.write_bytes(mutate_bytes(rng, good.read_bytes()))
        case 1:
            mutate_zip(rng, entries, path)
        case 2:
            which, new = mutate_array(rng, entries)
            states.write_entries(path, {**entries, which: new})
        case 3:
            states.with_facts(path, entries, mutate_facts(rng, entries))


def check_valid(name: str, stream: Any) -> None:
    """What was loaded is a state that goes on."""
    assert type(stream.num_steps) is int and stream.num_steps >= 0 <= stream.num_breaks
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(stream._stream.state))
    after = states.make_line(name, stream)
    try:
        (observation,) = stream.parse([after], "line")
        assert stream.cells(observation)
    except ValueError as error:  # numbers that are there and yet too large, or the end of time
        assert "NaN" in str(error) or "after" in str(error)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", states.OPTIONS)
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_file_ends_in_a_foreign_exception(name, count, tmp_path):
    """ValueError with the file's name or a valid state; in bounded time and memory."""
    stream, good = states.saved_stream(name, tmp_path / "good.npz")
    rng = np.random.default_rng([count, name == "forecast"])
    path, loaded = tmp_path / "strange.npz", 0
    tracemalloc.start()
    try:
        for _ in range(count):
            mutate(rng, good, path)
            tracemalloc.reset_peak()
            before, begin = tracemalloc.get_traced_memory()[0], time.process_time()
            try:
                stream.load(path)
            except ValueError as error:
                assert str(path) in str(error) and len(str(error)) < 2000
            else:
                loaded += 1
                check_valid(name, stream)
            try:
                inference.describe_state(path)
            except ValueError as error:
                assert str(path) in str(error)
            assert time.process_time() - begin < 5
            assert tracemalloc.get_traced_memory()[1] - before < 50_000_000
            stream.load(good)
    finally:
        tracemalloc.stop()
    print(f"{name}: {count} files, {loaded} loaded")
    assert loaded < count / 2
