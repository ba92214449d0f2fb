"""Which mechanisms a change is judged by."""

import re
import subprocess
from pathlib import Path

import pytest

from flax_linattn import ops
from tests.contract import cases, changed
from tests.contract.representatives import ENGINE, MAIN, expression

PACKAGE = Path(ops.__file__).parents[1]
HOME = "flax_linattn/ops/mechanisms"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([f"{HOME}/aaren.py"], ["aaren"]),
        ([f"{HOME}/expressive.py", f"{HOME}/aft.py"],
         ["expressive", "expressive_quadratic", "aft", "aft_simple"]),
        (["flax_linattn/ops/engine/exponential_scan.py"], ["aaren", "forgetting_aaren"]),
        ([f"{HOME}/softmax.py", "flax_linattn/ops/engine/window.py"],
         ["softmax", "softmax:window=3"]),
        (["flax_linattn/ops/contract/masks.py"], ["softmax", "aaren"]),
        (["flax_linattn/nn/attention.py", "README.md", f"{HOME}/__init__.py", "tests/ops/engine"],
         []),
    ],
)  # fmt: skip
def test_mechanisms_of_files(paths, names):
    assert changed.mechanisms_of(paths) == names


def engine_files() -> set[str]:
    return {path.stem for path in (PACKAGE / "ops/engine").glob("*.py")} - {"__init__"}


def test_every_part_of_the_engine_has_a_representative_that_imports_it():
    parts = [(name, part) for name, files in ENGINE.items() for part in files]
    assert {part for _, part in parts} == engine_files()
    assert set(MAIN) <= set(ENGINE) <= set(cases.MADE)
    split = ("aaren", "shards")  # by ``sequence_parallel``, from outside
    assert [pair for pair in parts if pair != split and not _imports(*pair)] == []


def _imports(name: str, part: str) -> bool:
    """Whether the home of a mechanism imports a file of the engine, perhaps by others."""
    left, seen = [type(cases.MADE[name]).__module__], set()
    while left:
        module = left.pop()
        path = PACKAGE.parent / f"{module.replace('.', '/')}.py"
        if module in seen or not path.is_file():
            continue
        seen.add(module)
        for base, names in re.findall(
            r"from (flax_linattn\.ops[\w.]*) import ([^#\n]*)", path.read_text()
        ):
            left += [base, *(f"{base}.{each}" for each in re.findall(r"\w+", names))]
    return f"flax_linattn.ops.engine.{part}" in seen


def test_an_expression_names_the_cases_of_a_mechanism_and_of_its_variants():
    assert expression([]) == ""
    assert expression(["aft"]) == "[aft- or [aft] or [aft: or test_aft"
    assert expression(["softmax:window=3"]) == "[softmax:window or test_softmax"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository with one commit, and a function that makes another of some files."""
    monkeypatch.delenv("FLAX_LINATTN_BASE", raising=False)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]

    def git(*args: str) -> None:
        subprocess.run(["git", *who, *args], cwd=tmp_path, check=True, capture_output=True)

    def commit(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / HOME / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git("add", ".")
        git("commit", "-m", "a commit")

    git("init", "-b", "main")
    commit(aaren='"""A."""\nx = 1\n', aft="y = 1\n", rwkv="z = 1\n")
    commit.git = git
    return tmp_path, commit


def test_code_that_changed_since_the_commit_before(clone):
    """Those with most lines first; neither docstrings nor layout are code."""
    root, commit = clone
    assert changed.landed(root) is None
    commit(aaren='"""B."""\n# why\nx = (1)\n', aft="y = 2\n", rwkv="z = 2\nw = 3\n")
    files = changed.changed_files(changed.landed(root), root)
    assert files == [f"{HOME}/rwkv.py", f"{HOME}/aft.py"]


def test_code_that_changed_since_a_branch_began(clone, monkeypatch):
    root, commit = clone
    commit.git("update-ref", "refs/remotes/origin/main", "HEAD")
    commit(aft="y = 2\n")
    commit(rwkv="z = 2\n")
    files = [f"{HOME}/aft.py", f"{HOME}/rwkv.py"]
    assert sorted(changed.changed_files(changed.landed(root), root)) == files
    monkeypatch.setenv("FLAX_LINATTN_BASE", "HEAD^")
    assert changed.changed_files(changed.landed(root), root) == files[1:]


def test_the_command_leaves_out_what_is_too_much(capsys, monkeypatch):
    paths = [f"{HOME}/{name}.py" for name in ("aaren", "aft", "rwkv", "linear", "eva")]
    monkeypatch.setattr(changed, "landed", lambda: "0123456789abcdef")
    monkeypatch.setattr(changed, "changed_files", lambda base: paths)
    changed.main()
    out, err = capsys.readouterr()
    assert out == expression(["aaren", "aft", "aft_simple", "rwkv"]) + "\n"
    assert "changed since 0123456789ab: aaren, aft, aft_simple, rwkv, linear, eva." in err
    assert "left out, as more than 4: linear, eva." in err
    monkeypatch.setattr(changed, "landed", lambda: None)
    changed.main()
    assert capsys.readouterr() == ("", "no earlier commit to compare with: no slow cases.\n")


def test_without_git_nothing_is_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert changed.landed(tmp_path) is None
