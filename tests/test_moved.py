"""Old names of modules: the same module, and a warning that says where it is now."""

import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from flax_linattn import _moved

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


@pytest.mark.parametrize("old", _moved.MOVED)
def test_an_old_name_is_the_new_module(old: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # its package may have moved, too
        importlib.import_module(old.rpartition(".")[0])
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {_moved.MOVED[old]} since 2026-11-23"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(_moved.MOVED[old])
    assert importlib.import_module(old) is module  # and no second warning
    del sys.modules[old]


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("from flax_linattn.ops.masks import segment_runs as x", "contract.masks.segment_runs"),
        ("from flax_linattn.ops import prefix as x", "engine.prefix"),
        (
            "import flax_linattn.ops.softmax\nx = flax_linattn.ops.softmax.SOFTMAX",
            "mechanisms.softmax.SOFTMAX",
        ),
        ("from flax_linattn.ops.baselines import Linformer as x", "mechanisms.linformer.Linformer"),
        # A module of a package that moved is one that moved: other names are slow tests.
        pytest.param(
            "from flax_linattn.ops.baselines.aft import AFT as x",
            "mechanisms.aft.AFT",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "from flax_linattn.ops.baselines.draws import gaussian as x",
            "engine.draws.gaussian",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_way_to_import(statement: str, value: str) -> None:
    """In a process of its own; the warning is said of the line that imports."""
    module, _, name = f"flax_linattn.ops.{value}".rpartition(".")
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        + "".join(f"    {line}\n" for line in statement.splitlines())
        + f"from {module} import {name} as new\n"
        "assert x is new, x\n"
        "assert {w.category for w in seen} == {DeprecationWarning}, seen\n"
        "assert {w.filename for w in seen} == {'<string>'}, seen\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not CHANGELOG.is_file(), reason="it is not part of the installed package")
def test_old_names_go_with_the_release_that_the_changelog_names() -> None:
    """One for all that is not released yet."""

    def named(text: str) -> set[str]:
        return set(re.findall(r"(?:until|goes (?:with|in))(?: release)?\s+(\d+\.\d+)", text))

    changelog = CHANGELOG.read_text()
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## [")[0]
    assert len(named(unreleased)) == 1 and not re.search(r"for\s+one\s+release", unreleased)
    folders = (CHANGELOG.parent / name for name in ("flax_linattn", "experiments"))
    code = [named(path.read_text()) for folder in folders for path in folder.rglob("*.py")]
    assert set().union(*code) <= named(changelog)


def test_an_unknown_name_is_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"flax_linattn\.ops\.nothing"):
        importlib.import_module("flax_linattn.ops.nothing")
    assert _moved.new_name("flax_linattn") is None and _moved.new_name("numpy") is None
