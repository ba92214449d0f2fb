"""The user's cache of compiled programs, which these tests keep in a folder of their own."""

import os
import subprocess
import sys

import pytest

from flax_linattn import compilation

CODE = """
import jax
from flax_linattn.compilation import cached_programs
for _ in range(2):
    with cached_programs():
        print(jax.jit(lambda x: x + 1)(1.0), jax.jit(lambda x: x * 3)(1.0))
assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0
"""


def compile_two(root, **settings):
    """Compiles two programs in a process of its own; returns its stderr."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("JAX_")}
    environment |= {"JAX_PLATFORMS": "cpu", "FLAX_LINATTN_PROGRAMS": str(root)} | settings
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2.0", "3.0"] * 2
    return done.stderr


def test_programs_are_cached_and_damaged_ones_compiled_again(tmp_path):
    assert compile_two(tmp_path) == ""
    entries = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(entries) >= 2
    for path in entries:
        path.write_bytes(path.read_bytes()[:50])
    assert "Error reading persistent compilation cache entry" in compile_two(tmp_path)


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


def test_a_folder_in_which_others_write_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("FLAX_LINATTN_PROGRAMS", str(tmp_path))
    compilation.programs_folder().mkdir(0o777)
    compilation.programs_folder().chmod(0o777)
    assert "others may write" in compile_two(tmp_path)
    assert not any(compilation.programs_folder().iterdir())


def test_the_least_recently_used_programs_go_first(monkeypatch, tmp_path):
    monkeypatch.setenv("FLAX_LINATTN_PROGRAMS", str(tmp_path))
    compilation.prune()  # nothing there
    for age, name in enumerate(["a-cache", "b-cache", "c-cache", "other"]):
        path = tmp_path / "jaxlib-1" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 - age, 5000 + age))
    (tmp_path / "thesis-cache").write_bytes(bytes(1000))
    for max_bytes, kept in ((250, {"a-cache", "b-cache"}), (100, {"a-cache"})):
        compilation.prune(max_bytes=max_bytes)
        assert {path.name for path in path.parent.iterdir()} == kept | {"other"}
    assert (tmp_path / "thesis-cache").exists()
