"""``flax-linattn data info`` of files of episodes."""

import dataclasses
from pathlib import Path

import pytest

from flax_linattn import cli
from flax_linattn.data.episodes import load_episodes, write_episodes
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
    assert "There is no file or folder of episodes Hoppper either." in said
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    assert cli.main(["data", "info", "table.csv"]) == 2
    said = capsys.readouterr().err
    assert "table.csv: expected episodes in an HDF5 file of D4RL or Min" in said
    assert "got CSV, which is not supported; save its columns as arrays with numpy.savez" in said
    assert "D4RL's names: observations [N, S], actions [N, A] or integers [N], rew" in said


def test_a_file_that_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("c2.hdf5", "toy.npz", "./Hoppper", "folder/toy"):
        assert cli.main(["data", "info", name]) == 2
        said = capsys.readouterr().err
        assert f"expected a data file at {Path(name)}, found nothing there; check the path" in said
        assert "unknown data set" not in said


def test_notes_are_printed_once_and_with_flags(tmp_path, capsys):
    path = save(tmp_path / "toy.npz", steps())
    assert cli.main(["data", "info", str(path)]) == 0
    shown = capsys.readouterr().out
    left = "3 steps behind the last end are left out; keep_unfinished keeps them"
    assert f"\nnote: {left} (--keep-unfinished)\n" in shown
    assert shown.count("cut before step 4 without a terminal state: 1 episode") == 1
    arrays = steps()
    del arrays["timeouts"]
    assert cli.main(["data", "info", str(save(path, arrays)), "--keep-unfinished"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("\nnote: no timeouts: only terminal states end episodes\n")
    assert left not in shown


def test_several_files_are_shown_joined(tmp_path, capsys):
    paths = [str(save(tmp_path / f"{seed}.npz", steps(seed=seed))) for seed in range(2)]
    assert cli.main(["data", "info", *paths, "--keep-unfinished"]) == 0
    alone, joined = capsys.readouterr().out.split("\n\n")
    lines = alone.splitlines()
    assert [lines[0], lines[2]] == [f"{path}: 4 episodes, 12 steps" for path in paths]
    assert lines[1] == lines[3]
    assert lines[1].startswith("  note: cut before step 4 without a terminal state: 2 episodes, ")
    assert joined.startswith(f"{paths[0]} + {paths[1]}: 8 episodes, 24 steps\nobservations: 3 num")
    assert cli.main(["data", "info", paths[0], "etth1"]) == 2
    said = capsys.readouterr().err
    assert "etth1 is the name of a data set; pass it alone, or only files of episodes." in said
    assert cli.main(["data", "info"]) == 2


def test_errors_name_the_flag(tmp_path, capsys):
    arrays = steps()
    arrays["terminals"][:] = arrays["timeouts"][:] = False
    path = save(tmp_path / "toy.npz", arrays)
    assert cli.main(["data", "info", str(path)]) == 2
    assert "as one episode with --keep-unfinished\n" in capsys.readouterr().err


def test_a_name_of_the_catalog_comes_first(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "ETTh1.npz", steps()).rename(tmp_path / "ETTh1")
    assert cli.main(["data", "info", "ETTh1"]) == 0
    assert "license: CC BY-ND 4.0" in capsys.readouterr().out
    assert cli.main(["data", "info", "./ETTh1"]) == 0
    assert "3 episodes" in capsys.readouterr().out
