"""The user's cache of compiled programs, which these tests keep in a folder of their own."""

import os
import subprocess
import sys

import pytest

from flax_linattn import compilation

CODE = """
import jax
from flax_linattn.compilation import use_compilation_cache
use_compilation_cache(), use_compilation_cache()
print(jax.jit(lambda x: x + 1)(1.0), jax.jit(lambda x: x * 3)(1.0))
"""


def compile_two(root, **settings):
    """Compiles two programs in a process of its own; returns what it said on stderr."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("JAX_")}
    environment |= {"JAX_PLATFORMS": "cpu", "FLAX_LINATTN_PROGRAMS": str(root)} | settings
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2.0", "3.0"]
    return done.stderr


def test_programs_are_cached_and_damaged_ones_compiled_again(tmp_path):
    assert compile_two(tmp_path) == ""
    entries = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(entries) >= 2
    for path in entries:
        path.write_bytes(path.read_bytes()[:50])
    assert compile_two(tmp_path) == ""


def test_one_note_says_that_a_folder_cannot_be_used(tmp_path):
    file = tmp_path / "file"
    file.touch()
    (note,) = compile_two(file).splitlines()
    assert note.startswith("note: compiled programs are not cached: ") and str(file) in note


def test_the_settings_of_jax_take_precedence(tmp_path):
    own, others = tmp_path / "own", tmp_path / "others"
    compile_two(own, JAX_ENABLE_COMPILATION_CACHE="false")
    compile_two(own, JAX_COMPILATION_CACHE_DIR=str(others))
    assert not own.exists()


@pytest.mark.parametrize(
    ("system", "folder"), [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "Local")]
)
def test_the_cache_of_each_platform(system, folder, monkeypatch, tmp_path):
    for name in ("FLAX_LINATTN_PROGRAMS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    programs = compilation.programs_folder()
    assert programs.parent == tmp_path / folder / "flax-linattn" / "programs"
    assert programs.name.startswith("jaxlib-")
    monkeypatch.setenv("FLAX_LINATTN_PROGRAMS", str(tmp_path / "own"))
    assert compilation.programs_folder().parent == tmp_path / "own"


def test_programs_that_were_used_longest_ago_go_first(monkeypatch, tmp_path):
    monkeypatch.setenv("FLAX_LINATTN_PROGRAMS", str(tmp_path))
    compilation.prune()  # nothing there
    for age, name in enumerate(["new", "old", "oldest"]):
        path = tmp_path / "a-jaxlib" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 - age, 5000 + age))
    compilation.prune(max_bytes=250)
    assert {path.name for path in (tmp_path / "a-jaxlib").iterdir()} == {"new", "old"}
    compilation.prune(max_bytes=100)
    assert [path.name for path in (tmp_path / "a-jaxlib").iterdir()] == ["new"]
