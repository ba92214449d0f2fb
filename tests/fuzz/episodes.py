"""Files of episodes."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flax_linattn.data.episodes import Episodes, load_episodes
from flax_linattn.data.errors import DataFormatError
from tests.data.episodes.cases import minari_episode, save, save_minari, steps
from tests.fuzz.damage import corrupted
from tests.fuzz.subject import Case, Subject

STORED = {
    "plain.hdf5": {},
    "gzip.hdf5": {"compression": "gzip", "chunks": True},
    "checked.hdf5": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "toy.npz": {},
}


class EpisodeFiles(Subject):
    """What ``load_episodes`` reads."""

    counts = (60, 5_000)
    errors = (DataFormatError,)
    longest = 1000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        paths = [save(folder / name, steps(), **how) for name, how in STORED.items()]
        minari = save_minari(folder / "minari", {n: minari_episode(4, n) for n in range(2)})
        paths.append(minari / "data" / "main_data.hdf5")
        choices = {"actions": np.arange(12) % 3, "num_actions": np.array(4)}
        paths.append(save(folder / "choices.npz", steps() | choices))
        self.whole = {path.name: path.read_bytes() for path in paths}

    def samples(self) -> Iterator[Case]:
        return (self.case(name, content) for name, content in self.whole.items())

    def damage(self, draw: random.Random) -> Case:
        name = draw.choice(list(self.whole))
        content = corrupted(self.whole[name], draw)
        return self.case(name, content, keep_unfinished=draw.random() < 0.5)

    def everywhere(self) -> Iterator[Case]:
        """Each byte of a short file in turn, fewer of long ones; and the file cut short at some."""
        for name, content in self.whole.items():
            for at in range(0, len(content), 1 + len(content) // 4000):
                value = (content[at] ^ 0xFF, content[at] ^ 1, 0x7F, 0)[at % 4]
                yield self.case(name, content[:at] + bytes([value]) + content[at + 1 :])
                if at % 30 == 0 and at:
                    yield self.case(name, content[:at])

    def case(self, name: str, content: bytes, **options: bool) -> Case:
        path = self.folder / name
        path.write_bytes(content)
        return Case(name, path, lambda: check_valid(load_episodes(path, **options)))

    def refusal(self, error: Exception, case: Case) -> str:
        assert str(error).startswith(f"{case.path}:"), error
        return super().refusal(error, case)


def check_valid(episodes: Episodes) -> None:
    assert np.isfinite(episodes.observations).all() and np.isfinite(episodes.actions).all()
    if episodes.num_actions is not None:
        assert 0 <= episodes.actions.min() <= episodes.actions.max() < episodes.num_actions
    assert np.isfinite(episodes.returns_to_go()).all() and (episodes.lengths > 0).all()
    assert episodes.rewards.dtype == np.float32 and episodes.terminated.dtype == np.bool_
