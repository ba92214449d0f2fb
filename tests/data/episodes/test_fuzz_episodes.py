"""Damaged files of episodes: each is refused with a message that names it, or is valid.

``python -m tests.data.episodes.test_fuzz_episodes 10000 SEED`` counts what came of so many.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flax_linattn.data.episodes import Episodes, load_episodes
from flax_linattn.data.files import DataFormatError
from tests.data.episodes.cases import minari_episode, save, save_minari, steps
from tests.data.test_fuzz_files import mutated

SECONDS = 2.0
"""Of a core, for one file; most take a hundredth."""
STORED = {
    "plain.hdf5": {},
    "gzip.hdf5": {"compression": "gzip", "chunks": True},
    "checked.hdf5": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "toy.npz": {},
}


def samples(folder: Path) -> dict[str, bytes]:
    """Whole files of every kind."""
    found = {name: save(folder / name, steps(), **how).read_bytes() for name, how in STORED.items()}
    episodes = {number: minari_episode(4, number) for number in range(2)}
    minari = save_minari(folder / "minari", episodes) / "data" / "main_data.hdf5"
    return {**found, "main_data.hdf5": minari.read_bytes()}


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Some bytes of another value, or pieces put in, taken out or doubled."""
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.3:
            content = mutated(content, draw)
            continue
        some = bytearray(content)
        at = draw.randrange(len(some))
        some[at] = draw.choice((0, 1, 255, some[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
        content = bytes(some)
    return content


def check_valid(episodes: Episodes) -> None:
    assert np.isfinite(episodes.observations).all() and np.isfinite(episodes.actions).all()
    assert np.isfinite(episodes.returns_to_go()).all() and (episodes.lengths > 0).all()
    assert episodes.rewards.dtype == np.float32 and episodes.terminated.dtype == np.bool_


def outcome(path: Path, **options) -> str:
    """What became of the file; anything but valid episodes or an error that names it fails."""
    begin = time.process_time()
    try:
        episodes = load_episodes(path, **options)
    except DataFormatError as error:
        assert str(error).startswith(f"{path}:"), error
        assert len(str(error)) < 4 * len(str(path)) + 1000, error
        found = "refused"
    else:
        check_valid(episodes)
        found = "valid"
    assert time.process_time() - begin < SECONDS
    return found


def fuzz(count: int, seed: int, folder: Path) -> Counter[tuple[str, str]]:
    """What became of so many files, by kind and outcome."""
    draw, counts, whole = random.Random(seed), Counter[tuple[str, str]](), samples(folder)
    for index in range(count):
        name = draw.choice(list(whole))
        path = folder / name
        content = damaged(whole[name], draw)
        path.write_bytes(content)
        try:
            counts[name, outcome(path, keep_unfinished=draw.random() < 0.5)] += 1
        except BaseException as error:
            error.add_note(f"file {index} of seed {seed}: {name}")
            raise
    return counts


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 0), pytest.param(5_000, 1, marks=pytest.mark.slow)]
)
def test_damaged_files_are_refused_or_valid(count, seed, tmp_path):
    counts = fuzz(count, seed, tmp_path)
    assert {found for _, found in counts} == {"refused", "valid"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STORED, "main_data.hdf5"])
def test_every_byte_may_be_wrong(name, tmp_path):
    """Each byte of a short file in turn, fewer of long ones; and the file cut short at some."""
    content = samples(tmp_path)[name]
    path = tmp_path / name
    for at in range(0, len(content), 1 + len(content) // 4000):
        value = (content[at] ^ 0xFF, content[at] ^ 1, 0x7F, 0)[at % 4]
        path.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
        outcome(path)
        if at % 30 == 0 and at:
            path.write_bytes(content[:at])
            outcome(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(int(sys.argv[1]), int(sys.argv[2]), Path(folder))
    for (name, what), number in sorted(found.items()):
        print(f"{name:<20}{what:<12}{number:>6}")
