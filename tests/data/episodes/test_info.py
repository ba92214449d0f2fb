"""``flax-linattn data info`` of files of episodes."""

import dataclasses

import pytest

from flax_linattn import cli
from flax_linattn.data import load_episodes, write_episodes
from tests.data.episodes.cases import minari_episode, save, save_minari, steps


@pytest.mark.parametrize("suffix", [".hdf5", ".npz"])
def test_a_file_is_described(tmp_path, capsys, suffix):
    path = tmp_path / f"toy{suffix}"
    plain = load_episodes(save(tmp_path / "plain.npz", steps()))
    write_episodes(path, dataclasses.replace(plain, env_id="Hopper-v5"))
    assert cli.main(["data", "info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{path}: 3 episodes of Hopper-v5, 9 steps\nobservations: 3 numbers\n")
    assert "as D4RL normalizes" in shown


def test_a_folder_is_described(tmp_path, capsys):
    folder = save_minari(tmp_path / "toy", {0: minari_episode(3), 1: minari_episode(2, end=None)})
    assert cli.main(["data", "info", str(folder)]) == 0
    assert f"{folder}: 1 episode, 3 steps" in capsys.readouterr().out
    assert cli.main(["data", "info", str(folder), "--keep-unfinished"]) == 0
    assert f"{folder}: 2 episodes, 5 steps" in capsys.readouterr().out


def test_what_is_neither_name_nor_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", "info", "Hoppper"]) == 2
    said = capsys.readouterr().err
    assert "unknown data set 'Hoppper'; choose one of: " in said
    assert "Or give a file or folder of episodes: Hoppper is none." in said
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    assert cli.main(["data", "info", "table.csv"]) == 2
    assert "table.csv: expected episodes in an HDF5 file of D4RL or Min" in capsys.readouterr().err


def test_errors_name_the_flag(tmp_path, capsys):
    arrays = steps()
    arrays["terminals"][:] = arrays["timeouts"][:] = False
    path = save(tmp_path / "toy.npz", arrays)
    assert cli.main(["data", "info", str(path)]) == 2
    assert "with keep_unfinished=True (--keep-unfinished)" in capsys.readouterr().err


def test_a_name_of_the_catalogue_comes_first(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "ETTh1.npz", steps()).rename(tmp_path / "ETTh1")
    assert cli.main(["data", "info", "ETTh1"]) == 0
    assert "licence: CC BY-ND 4.0" in capsys.readouterr().out
    assert cli.main(["data", "info", "./ETTh1"]) == 0
    assert "3 episodes" in capsys.readouterr().out
