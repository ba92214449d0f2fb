"""Measurements of code that has changed since: the list that the pages show.

    python -m experiments.stale

Times, bytes and rounding errors belong to the code that was measured. A table is stale if the code
of a mechanism in it differs between the commit of the table and the files here. The code is the
mechanism's module and the definitions of ``flax_linattn.ops`` that it uses, as syntax trees without
comments, docstrings, raised errors and the checks of arguments; layers and models are not compared.
Results of training are not listed: that equations stay as they are is what the tests of the
contract hold. The list needs the whole history of the repository.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
            "streaming/serving-*", "synthetic/vmapped", "text/generation-*")  # fmt: skip
"""Results that belong to the code, not to the equations."""
UNNAMED = {
    "attention/conditioning": ("expressive_quadratic",),
    "attention/expansion_point": ("taylorshift",),
    "attention/taylor": ("elementwise", "elementwise_series"),
    "efficiency/cold_starts-cpu": ("aaren",),
    "efficiency/overheads-cpu": ("aaren",),
    "offline_rl/latency": ("softmax", "aaren"),
    "streaming/serving-cpu": ("aaren",),
    "synthetic/vmapped": ("expressive",),
}
"""Mechanisms of results that name none."""
ARGUMENT_CHECKS = frozenset(
    f"{OPS}/contract/{name}.py" for name in ("call", "capabilities", "checks", "token_arguments")
)
"""Modules that all mechanisms share and that check arguments."""


MAX_NAMED = 8
"""Number of changed definitions up to which a page names them."""


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
    if name in UNNAMED:
        return list(UNNAMED[name])
    names = re.findall(r'"([\w-]+)', json.dumps(results))
    spoken = {SPECS.get(word, word).partition(":")[0] for word in names}
    stem = name.rpartition("/")[2]
    return [known for known in ops.list_mechanisms()
            if known in spoken or stem.startswith(f"{known}_")]  # fmt: skip


Definition = tuple[str, str]
"""Path of a module and a name that it defines; "" stands for its other statements."""


class Module(NamedTuple):
    """A module of ``ops`` without comments, docstrings and raised errors.

    Attributes:
        definitions: Syntax tree of each definition, by name.
        uses: Names, and names with one attribute, that each definition uses.
        imports: Definition, or whole module with the name "", of each imported name.
    """

    definitions: dict[str, str]
    uses: dict[str, set[str]]
    imports: dict[str, Definition]


@functools.cache
def parse(source: str) -> Module:
    """A module of ``ops`` by its definitions."""
    definitions: dict[str, str] = {}
    uses: dict[str, set[str]] = {}
    tree = Strip().visit(ast.parse(source))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        used = set()
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                used.add(one.id)
            elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                used.add(f"{one.value.id}.{one.attr}")
        for name in _defined_names(node):
            definitions[name] = definitions.get(name, "") + ast.dump(node)
            uses[name] = uses.get(name, set()) | used
    return Module(definitions, uses, dict(_imports(tree)))


def _defined_names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines; "" if it defines none."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        targets = node.targets if isinstance(node, ast.Assign) else []
    names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    return names or [""]


class Strip(ast.NodeTransformer):
    """Removes what changes no measurement."""

    def visit_Raise(self, node: ast.Raise) -> ast.Pass:
        return ast.Pass()

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | ast.Pass:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if is_text else node


def _imports(tree: ast.AST) -> Iterator[tuple[str, Definition]]:
    """What a module imports from ``ops``, by the name that it has there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flax_linattn.ops."):
            folder = str(node.module).replace(".", "/")
            for name in node.names:
                path = f"{folder}/{name.name}.py"
                is_module = (ROOT / path).is_file()
                definition = (path, "") if is_module else (f"{folder}.py", name.name)
                yield name.asname or name.name, definition


@functools.cache
def code(mechanism: str) -> frozenset[Definition]:
    """The definitions in the module of a mechanism, and what they use of ``flax_linattn.ops``."""
    home = inspect.getsourcefile(type(ops.get_mechanism(mechanism)))
    assert home is not None
    needed, to_read = set[Definition](), [(str(Path(home).relative_to(ROOT)), "")]
    while to_read:
        path, name = to_read.pop()
        if (path, name) in needed or path in ARGUMENT_CHECKS:
            continue
        module = parse((ROOT / path).read_text())
        needed.add((path, name))
        if not name:
            to_read += [(path, one) for one in module.definitions]
        for used in module.uses.get(name, ()):
            first, _, attribute = used.partition(".")
            if first in module.imports:
                other, imported = module.imports[first]
                if imported or attribute:
                    to_read.append((other, imported or attribute))
            elif first in module.definitions:
                to_read.append((path, first))
    return frozenset(needed)


@functools.cache
def changed_since(commit: str, date: str | None) -> frozenset[Definition]:
    """The definitions of ``ops`` that are not what they were at a commit.

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
    changed = set[Definition]()
    for file in (ROOT / OPS).rglob("*.py"):
        path = str(file.relative_to(ROOT))
        before = parse(_blob(blobs[path])).definitions if path in blobs else {}
        now = parse(file.read_text()).definitions
        changed |= {(path, name) for name, tree in now.items() if tree != before.get(name)}
    return frozenset(changed)


@functools.cache
def _blob(name: str) -> str:
    return git("cat-file", "blob", name)


def find_stale() -> dict[str, str]:
    """By the name of stale results, the mechanisms whose code has changed since, and what of it.

    Raises:
        HistoryError: it cannot be found out here.
    """
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        raise HistoryError("this is no repository with its whole history")
    stale = {}
    for name, results in measured_results().items():
        changed = changed_since(results["commit"], results.get("commit_date"))
        own = {one: code(one) & changed for one in named_mechanisms(name, results)}
        if own := {one: definitions for one, definitions in own.items() if definitions}:
            everything = len(own) == len(ops.list_mechanisms())
            of = f"all {len(own)}" if everything else quoted(own)
            definitions = sorted({one for _, one in frozenset.union(*own.values())})
            many = len(definitions) > MAX_NAMED
            what = f"{len(definitions)} definitions" if many else quoted(definitions)
            stale[name] = f"{of} ({what})"
    return stale


def quoted(names: Iterable[str]) -> str:
    """Names in backquotes, for a page."""
    return ", ".join(f"`{name}`" for name in names)


def stored_stale() -> dict[str, str]:
    """The list that the pages show."""
    stale: dict[str, str] = json.loads(LIST.read_text()) if LIST.is_file() else {}
    return stale


def what_changed(name: str) -> str:
    """What code has changed since results were measured, for a page; or nothing."""
    return stored_stale().get(name, "")


def render(folder: Path = FOLDER) -> str:
    """Writes the page of the stored list and returns it."""
    results = measured_results()
    lines = [
        [f"`{name}`", f"{results[name]['commit']}, {results[name]['date']}", what]
        for name, what in stored_stale().items()
    ]
    first = (
        f"In {len(lines)} of {len(results)} tables of time, memory or rounding errors, the code of "
        "a mechanism has changed since the measurement. A table holds for the commit that it "
        "names; the current code may give other numbers. `python -m experiments.stale` lists them "
        "from the history of the repository. Layers and models are not compared."
    )
    header = ["table", "measured", "mechanisms with other code today (changed definitions)"]
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
