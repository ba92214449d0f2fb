"""Measurements of code that has changed since: the list that the pages show.

    python -m experiments.stale

Times, bytes and rounding errors belong to the code that was measured. A table is stale if the code
of a mechanism in it, as a syntax tree without comments and docstrings, differs between the commit
of the table and the files here; the code is the mechanism's module and what that imports of
``flax_linattn.ops``, without the checks of arguments that all share (``ops.contract``). Results of
training are not listed: that equations stay as they are is what the tests of the contract hold.
The list needs the whole history of the repository.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.columns import SPECS
from experiments.pages import write_page
from flax_linattn import ops
from flax_linattn.bench.journal import write_json
from flax_linattn.bench.report import markdown

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
OPS = "flax_linattn/ops"
LIST = FOLDER / "stale.json"
MEASURED = ("accuracy/*", "attention/*", "efficiency/*", "events/long_stream",
            "offline_rl/latency", "sequences/memory", "streaming/latency", "streaming/loop",
            "streaming/serving-*", "synthetic/vmapped")  # fmt: skip
"""Results that belong to the code, not to the equations."""


class HistoryError(Exception):
    """git is not installed, or the history is incomplete."""


def git(*arguments: str) -> str:
    """The output of a command of git; nothing if it fails.

    Raises:
        HistoryError: there is no git here.
    """
    command = ("git", *arguments)
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError as error:
        raise HistoryError("git is not installed") from error
    return made.stdout if made.returncode == 0 else ""


def measured_results() -> dict[str, dict[str, Any]]:
    """The content of each file of results that belongs to the code, by its name."""
    files = sorted(file for pattern in MEASURED for file in FOLDER.glob(f"{pattern}.json"))
    stored = {str(file.relative_to(FOLDER).with_suffix("")): file.read_text() for file in files}
    results = {name: json.loads(text) for name, text in stored.items() if "-quick" not in name}
    return {name: result for name, result in results.items() if result.get("commit")}


def named_mechanisms(name: str, results: Mapping[str, Any]) -> list[str]:
    """The mechanisms that results, or their file's name, speak of."""
    names = re.findall(r'"([\w-]+)', json.dumps(results))
    spoken = {SPECS.get(word, word).partition(":")[0] for word in names}
    stem = name.rpartition("/")[2]
    return [known for known in ops.list_mechanisms()
            if known in spoken or stem.startswith(f"{known}_")]  # fmt: skip


@functools.cache
def code_paths(mechanism: str) -> frozenset[str]:
    """Paths of the code of a mechanism."""
    home = inspect.getsourcefile(type(ops.get_mechanism(mechanism)))
    assert home is not None
    paths, to_read = set[str](), [str(Path(home).relative_to(ROOT))]
    while to_read:
        path = to_read.pop()
        if path not in paths and not path.startswith(f"{OPS}/contract/"):
            paths.add(path)
            to_read += _imports((ROOT / path).read_text())
    return frozenset(paths)


def _imports(source: str) -> Iterator[str]:
    """Paths of the modules of ``ops`` from which a module imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flax_linattn.ops."):
            folder = str(node.module).replace(".", "/")
            for path in {f"{folder}.py", *(f"{folder}/{name.name}.py" for name in node.names)}:
                if (ROOT / path).is_file():
                    yield path


@functools.cache
def syntax(source: str) -> str:
    """The syntax tree of a module without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        with_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, with_docstring) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def changed_since(commit: str, date: str | None) -> frozenset[str]:
    """Paths of ``ops`` whose code is not what it was at a commit.

    Args:
        commit: its name; several are separated by commas, of which the first counts.
        date: Commit date. If the commit is not in this history, the last commit before this date
            is used.

    Raises:
        HistoryError: neither is known.
    """
    commit = commit.partition(",")[0]
    if not git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        commit = git("rev-list", "-1", f"--before={date}", "HEAD").strip() if date else ""
    if not commit:
        raise HistoryError("a measured commit is not in the history")
    blobs = {
        path: entry.split()[2]
        for line in git("ls-tree", "-r", commit, "--", OPS).splitlines()
        for entry, _, path in [line.partition("\t")]
    }
    files = {str(file.relative_to(ROOT)): file for file in (ROOT / OPS).rglob("*.py")}
    return frozenset(
        path
        for path, file in files.items()
        if path not in blobs or syntax(_blob(blobs[path])) != syntax(file.read_text())
    )


@functools.cache
def _blob(name: str) -> str:
    return git("cat-file", "blob", name)


def find_stale() -> dict[str, list[str]]:
    """By the name of stale results, the mechanisms whose code has changed since.

    Raises:
        HistoryError: it cannot be found out here.
    """
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        raise HistoryError("this is no repository with its whole history")
    stale = {}
    for name, results in measured_results().items():
        changed = changed_since(results["commit"], results.get("commit_date"))
        own = [one for one in named_mechanisms(name, results) if code_paths(one) & changed]
        if own:
            stale[name] = own
    return stale


def stored_stale() -> dict[str, list[str]]:
    """The list that the pages show."""
    stale: dict[str, list[str]] = json.loads(LIST.read_text()) if LIST.is_file() else {}
    return stale


def what_changed(name: str) -> str:
    """The mechanisms whose code has changed since results were measured, for a page; or nothing."""
    own = stored_stale().get(name, [])
    if len(own) == len(ops.list_mechanisms()):
        return f"all {len(own)}"
    return ", ".join(f"`{one}`" for one in own)


def render(folder: Path = FOLDER) -> str:
    """Writes the page of the stored list and returns it."""
    results = measured_results()
    lines = [
        [f"`{name}`", f"{result['commit']}, {result['date']}", what_changed(name)]
        for name, result in results.items()
        if what_changed(name)
    ]
    unnamed = [name for name, result in results.items() if not named_mechanisms(name, result)]
    first = (
        f"In {len(lines)} of the {len(results) - len(unnamed)} compared tables (time, memory, "
        "rounding errors), the code of a mechanism has changed since the measurement. A table "
        "holds for the commit that it names; the current code may give other numbers. `python "
        "-m experiments.stale` lists them from the history of the repository. Tables that name no "
        f"mechanism are not compared: {', '.join(unnamed)}."
    )
    header = ["table", "measured", "mechanisms with other code today"]
    return write_page(folder / "stale.md", [first, markdown(header, lines)])


def update() -> None:
    """Writes the current list, or a note why the stored list was not updated."""
    try:
        write_json(LIST, find_stale())
    except HistoryError as error:
        print(f"note: {LIST.name} was not updated: {error}.", file=sys.stderr)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    update()
    print(render(), end="")
