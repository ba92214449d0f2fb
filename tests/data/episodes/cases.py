"""Small files of episodes that the tests share."""

import h5py
import numpy as np


def steps(count=12, seed=0, dtype=np.float32):
    """Arrays in the keys of D4RL: episodes of 4, 3 and 2 steps, and an unfinished one."""
    rng = np.random.default_rng(seed)
    terminals, timeouts = np.zeros(count, bool), np.zeros(count, bool)
    terminals[[3, 8]] = True
    timeouts[6] = True
    return {
        "observations": rng.normal(size=(count, 3)).astype(dtype),
        "actions": rng.uniform(-1, 1, (count, 2)).astype(dtype),
        "rewards": rng.normal(size=count).astype(dtype),
        "terminals": terminals,
        "timeouts": timeouts,
    }


def save(path, arrays, **how):
    """An .npz file, or an HDF5 file whose arrays are stored in some way."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return path
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, **how)
    return path


def save_minari(folder, episodes, metadata=None):
    """A folder in Minari's layout; episodes as arrays by number."""
    data = folder / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for number, arrays in episodes.items():
            for key, array in arrays.items():
                file[f"episode_{number}/{key}"] = array
    if metadata is not None:
        (data / "metadata.json").write_text(metadata)
    return folder


def minari_episode(length, seed=0, end="terminations"):
    rng = np.random.default_rng(seed)
    arrays = {
        "observations": rng.normal(size=(length + 1, 3)),
        "actions": rng.uniform(-1, 1, (length, 2)).astype(np.float32),
        "rewards": rng.normal(size=length),
        "terminations": np.zeros(length, bool),
        "truncations": np.zeros(length, bool),
    }
    if end is not None:
        arrays[end][-1] = True
    return arrays
