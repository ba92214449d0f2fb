"""Where results came from."""

import subprocess

import pytest

from flax_linattn.bench import origin as module


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of a package, with one commit."""
    package = tmp_path / "flax_linattn"
    (package / "bench").mkdir(parents=True)
    (package / "py.typed").touch()
    file = package / "bench" / "provenance.py"
    file.write_text("")

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, timeout=60)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    monkeypatch.setattr(module, "__file__", str(file))
    return package


def test_code_that_git_does_not_know_is_no_commit(repository):
    clean = module.commit()
    assert clean and not clean.endswith("-dirty")
    results = repository.parent / "experiments" / "efficiency"
    results.mkdir(parents=True)
    for path in (repository.parent / "notes.txt", results / "speed.json", results / "speed.md"):
        path.touch()  # no code
    assert module.commit() == clean
    (repository / "new.py").touch()
    assert module.commit() == f"{clean}-dirty"


@pytest.mark.parametrize(
    "file",
    [
        "experiments/efficiency/speed.py",
        "flax_linattn/data/sets/ETTh1.csv.gz",
        "flax_linattn/bench/origin.py",  # changed, not new
    ],
)
def test_programs_data_and_changes_are_no_commit(repository, file):
    clean, path = module.commit(), repository.parent / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n")
    assert module.commit() == f"{clean}-dirty"


def test_an_installed_package_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b.py"))
    (tmp_path / "a").mkdir()
    assert module.commit() == ""
    assert {"jax", "flax", "optax", "python", "cores", "commit"} <= module.provenance("x").keys()
