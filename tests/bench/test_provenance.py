"""Where results came from."""

import subprocess
from pathlib import Path

import pytest

from flax_linattn.bench import provenance
from flax_linattn.bench.provenance import commit


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of a package, with one commit."""
    package = tmp_path / "flax_linattn"
    (package / "bench").mkdir(parents=True)
    (package / "py.typed").touch()
    module = package / "bench" / "provenance.py"
    module.write_text("")

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, timeout=60)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    monkeypatch.setattr("flax_linattn.bench.provenance.__file__", str(module))
    return package


def test_code_that_git_does_not_know_is_no_commit(repository):
    clean = commit()
    assert clean and not clean.endswith("-dirty")
    (repository / "notes.txt").touch()  # no code
    assert commit() == clean
    (repository / "new.py").touch()
    assert commit() == f"{clean}-dirty"


def test_code_that_was_changed_is_no_commit(repository):
    clean = commit()
    Path(repository, "bench", "provenance.py").write_text("x = 1\n")
    assert commit() == f"{clean}-dirty"


def test_an_installed_package_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("flax_linattn.bench.provenance.__file__", str(tmp_path / "a" / "b.py"))
    (tmp_path / "a").mkdir()
    assert commit() == ""
    assert {"jax", "flax", "optax", "python", "cores", "commit"} <= provenance("x").keys()
