"""HDF5 files that reach out of themselves, or claim more than they hold, are not read."""

import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from flax_linattn.data import DataFormatError
from flax_linattn.data.episodes import hdf5_file, load_episodes
from tests.data.episodes.cases import minari_episode, save, save_minari, steps

STATM = Path("/proc/self/statm")
ALL = ("observations", "actions", "rewards", "terminals", "timeouts")


def without(path, key):
    """A file of all arrays but one."""
    return save(path, {name: own for name, own in steps().items() if name != key})


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"chunks": True},
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (5,), "maxshape": (None,)},
    ],
)
def test_every_usual_layout_is_read(tmp_path, how):
    arrays, plain = steps(), load_episodes(save(tmp_path / "plain.npz", steps()))
    with h5py.File(tmp_path / "toy.hdf5", "w") as file:
        for key, array in arrays.items():
            own = {name: (value[0], *array.shape[1:]) if isinstance(value, tuple) else value
                   for name, value in how.items()}  # fmt: skip
            file.create_dataset(key, data=array, **own)
    assert load_episodes(tmp_path / "toy.hdf5").checksum() == plain.checksum()


def test_incompressible_chunks_are_read(tmp_path):
    """HDF5 stores a chunk that gzip makes longer as it is."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2**32, (12, 40), np.uint32).view(np.float32)
    noise[~(np.abs(noise) < 1e30)] = 1
    arrays = {**steps(), "observations": noise}
    path = save(tmp_path / "toy.hdf5", arrays, compression="gzip")
    np.testing.assert_array_equal(load_episodes(path).observations, noise[:9])


@pytest.mark.parametrize("key", ALL)
def test_no_link_is_followed(tmp_path, key):
    elsewhere = save(tmp_path / "elsewhere.hdf5", steps())
    path = without(tmp_path / "toy.hdf5", key)
    with h5py.File(path, "a") as file:
        file[key] = h5py.ExternalLink(elsewhere.name, key)
    with pytest.raises(
        DataFormatError, match=rf"hdf5:{key}: expected an array in .*\(ExternalLink"
    ):
        load_episodes(path)
    with h5py.File(path, "a") as file:
        del file[key]
        file["other"] = steps()[key]
        file[key] = h5py.SoftLink("/other")
    with pytest.raises(DataFormatError, match=rf"hdf5:{key}: expected an array in .*\(SoftLink"):
        load_episodes(path)
    with h5py.File(path, "a") as file:
        del file[key]
        file[key] = file["other"]  # a second name of the same array
    assert load_episodes(path).num_episodes == 3


def test_no_group_of_another_file_is_read(tmp_path):
    save_minari(tmp_path / "other", {0: minari_episode(3)})
    folder = save_minari(tmp_path / "toy", {1: minari_episode(3)})
    main = folder / "data" / "main_data.hdf5"
    with h5py.File(main, "a") as file:
        file["episode_0"] = h5py.ExternalLink("../../other/data/main_data.hdf5", "episode_0")
    with pytest.raises(DataFormatError, match=r"hdf5:episode_0: expected .* \(ExternalLink\)"):
        load_episodes(folder)


def test_no_array_of_another_file_is_read(tmp_path):
    (tmp_path / "secret.bin").write_bytes(np.ones(12, np.float32).tobytes())
    path = without(tmp_path / "toy.hdf5", "rewards")
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (12,), "f4", external=[(tmp_path / "secret.bin", 0, 48)])
    with pytest.raises(DataFormatError, match="hdf5:rewards: expected numbers in the file itself"):
        load_episodes(path)
    elsewhere = save(tmp_path / "elsewhere.hdf5", steps())
    layout = h5py.VirtualLayout((12,), "f4")
    layout[:] = h5py.VirtualSource(elsewhere, "rewards", (12,))
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_virtual_dataset("rewards", layout)
    with pytest.raises(DataFormatError, match="hdf5:rewards: expected numbers in the file itself"):
        load_episodes(path)


@pytest.mark.parametrize("how", [{"compression": "lzf"}, {"scaleoffset": 3}])
def test_only_gzip_is_read(tmp_path, how):
    path = without(tmp_path / "toy.hdf5", "rewards")
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", data=steps()["rewards"], **how)
    with pytest.raises(DataFormatError, match=r"hdf5:rewards: expected gzip or no .* filters \["):
        load_episodes(path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([b"a"] * 12), "hdf5:rewards: expected numbers, got |S1"),
        (np.zeros(12, [("a", "f4"), ("b", "i4")]), "hdf5:rewards: expected numbers, got ..'a'"),
        (["text"] * 12, "hdf5:rewards: expected numbers, got object"),
        (h5py.Empty("f4"), "hdf5:rewards: expected numbers, got float32"),
        (np.zeros(12, complex), "hdf5:rewards: expected numbers, got complex128"),
    ],
)
def test_only_numbers_are_read(tmp_path, array, message):
    path = without(tmp_path / "toy.hdf5", "rewards")
    with h5py.File(path, "a") as file:
        file["rewards"] = array
    with pytest.raises(DataFormatError, match=message):
        load_episodes(path)


def test_a_group_is_named_with_its_parts(tmp_path):
    path = without(tmp_path / "toy.hdf5", "observations")
    with h5py.File(path, "a") as file:
        file["observations/image"] = np.zeros((12, 4))
        file["observations/pose"] = np.zeros((12, 4))
    with pytest.raises(
        DataFormatError, match=r"observations: .* got a Group of image, pose; nested"
    ):
        load_episodes(path)


@pytest.fixture
def little_memory():
    """A process that cannot take half of what the files claim."""
    if not STATM.exists():
        pytest.skip("this system has no limit of memory that a test can set")
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(STATM.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("how", [{}, {"chunks": (2**16, 64)}, {"chunks": (2**16, 64),
                                                               "compression": "gzip"}])  # fmt: skip
@pytest.mark.parametrize("rows", [2**22, 2**40])
def test_claims_without_anything_stored(tmp_path, little_memory, how, rows):
    path = without(tmp_path / "toy.hdf5", "observations")
    with h5py.File(path, "a") as file:
        file.create_dataset("observations", (rows, 64), "f4", **how)
    assert path.stat().st_size < 20_000
    message = "expected (at most 537 MB unpacked|[0-9]+ chunks|[0-9,]+ bytes)"
    with pytest.raises(DataFormatError, match=rf"toy\.hdf5:observations: {message}"):
        load_episodes(path)


def test_large_chunks_are_refused(tmp_path, monkeypatch):
    path = save(tmp_path / "toy.hdf5", steps(), chunks=True)
    monkeypatch.setattr(hdf5_file, "MAX_CHUNK_BYTES", 300)
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", data=np.zeros((4, 2), "f4"), maxshape=(None, 2),
                            chunks=(1000, 2))  # fmt: skip
        with pytest.raises(
            DataFormatError, match=r"x: expected chunks of at most 300 .* got 8,000"
        ):
            hdf5_file.check_dataset("x", file["observations"])


def written(path, chunk, raw, **how):
    """A file whose observations hold one chunk of our own bytes."""
    without(path, "observations")
    with h5py.File(path, "a") as file:
        own = file.create_dataset("observations", (12, 3), "f4", chunks=chunk, **how)
        own.id.write_direct_chunk((0, 0), raw)
    return path


@pytest.mark.parametrize("how", [{}, {"shuffle": True}])
def test_a_chunk_that_inflates_to_more(tmp_path, how):
    bomb = zlib.compress(bytes(2**24), 9)
    path = written(tmp_path / "toy.hdf5", (12, 3), bomb, compression="gzip", **how)
    with pytest.raises(DataFormatError, match="observations: expected 144 bytes, got 16,3"):
        load_episodes(path)
    short = zlib.compress(bytes(10**6), 9)[:150]  # as long as a chunk may be
    path = written(tmp_path / "toy.hdf5", (12, 3), short, compression="gzip", **how)
    with pytest.raises(DataFormatError, match="observations: expected 144 bytes, got 209"):
        load_episodes(path)


@pytest.mark.parametrize(
    "raw", [zlib.compress(bytes(100)), zlib.compress(bytes(144))[:-6], b"no deflate" * 3, b"0"]
)
def test_a_chunk_that_is_not_whole(tmp_path, raw):
    path = written(tmp_path / "toy.hdf5", (12, 3), raw, compression="gzip")
    with pytest.raises(DataFormatError, match=r"toy\.hdf5(:observations)?: expected"):
        load_episodes(path)


def test_wrong_bytes_of_a_flag_are_true(tmp_path):
    path = without(tmp_path / "toy.hdf5", "terminals")
    with h5py.File(path, "a") as file:
        own = file.create_dataset("terminals", (12,), bool, chunks=(12,))
        own.id.write_direct_chunk((0,), bytes([0, 0, 0, 2, 0, 0, 0, 0, 255, 0, 0, 0]))
    assert load_episodes(path).starts.tolist() == [0, 4, 7, 9]


def test_an_array_is_no_group(tmp_path):
    folder = save_minari(tmp_path / "toy", {0: minari_episode(3)})
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_1"] = np.zeros(3)
    with pytest.raises(DataFormatError, match="hdf5:episode_1: expected a group, got an array"):
        load_episodes(folder)
