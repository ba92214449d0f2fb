"""Measurements of code that has changed since: the list that the pages show.

    python -m experiments.stale

Times, bytes and rounding errors belong to the code that was measured. A table is stale if the code
of a mechanism in it differs between the commit of the table and the files here. The code is the
mechanism's module and the definitions of ``flax_linattn.ops`` that it uses, as syntax trees without
comments, docstrings, raised errors and the checks of arguments; layers and models are not compared.
Results of training are not listed, because the contract tests check that equations do not change.
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
from typing import Any, NamedTuple

from experiments.columns import SPECS
from experiments.pages import quoted, write_page
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
MECHANISMS_BY_RESULT = {
    "attention/conditioning": ("expressive_quadratic",),
    "attention/expansion_point": ("taylorshift",),
    "attention/taylor": ("elementwise", "elementwise_series"),
    "efficiency/cold_starts-cpu": ("aaren",),
    "efficiency/overheads-cpu": ("aaren",),
    "offline_rl/latency": ("softmax", "aaren"),
    "streaming/serving-cpu": ("aaren",),
    "synthetic/vmapped": ("expressive",),
}
"""Mechanisms of results that name no mechanism."""
ARGUMENT_CHECKS = frozenset(f"{OPS}/contract/{name}.py" for name in ("capabilities", "checks"))
"""Modules that all mechanisms share and that only describe or check arguments."""
DERIVATIVE_RULES = ("defjvp", "defjvps", "defvjp")
"""Methods that give a function its derivative."""
MAX_LISTED_DEFINITIONS = 8
"""Maximum number of changed definitions that a page lists by name."""


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


def check_history() -> None:
    """Checks that the whole history is here.

    Raises:
        HistoryError: it is not, or there is no git.
    """
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        raise HistoryError("this is no repository with its whole history")


def measured_results() -> dict[str, dict[str, Any]]:
    """The content of each file of results that belongs to the code, by its name."""
    files = sorted(file for pattern in MEASURED for file in FOLDER.glob(f"{pattern}.json"))
    stored = {str(file.relative_to(FOLDER).with_suffix("")): file.read_text() for file in files}
    results = {name: json.loads(text) for name, text in stored.items() if "-quick" not in name}
    return {name: result for name, result in results.items() if result.get("commit")}


def named_mechanisms(name: str, results: Mapping[str, Any]) -> list[str]:
    """The mechanisms that results, or their file's name, speak of."""
    if name in MECHANISMS_BY_RESULT:
        return list(MECHANISMS_BY_RESULT[name])
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
        definitions: Syntax tree of each definition by name, with what its names stand for.
        uses: Names, and names with one attribute, that each definition uses.
        imports: Definition, or whole module with the name "", of each imported name.
    """

    definitions: dict[str, str]
    uses: dict[str, set[str]]
    imports: dict[str, Definition]


@functools.cache
def parse(source: str) -> Module:
    """Splits a module of ``ops`` into its definitions."""
    definitions: dict[str, str] = {}
    uses: dict[str, set[str]] = {}
    tree = Stripper().visit(ast.parse(source))
    imports = dict(_imports(tree))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        used = set()
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                used.add(one.id)
            elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                used.add(f"{one.value.id}.{one.attr}")
        sources = sorted((name, *imports[name]) for name in used & imports.keys())
        for name in _defined_names(node):
            definitions[name] = definitions.get(name, "") + f"{ast.dump(node)}{sources}"
            uses[name] = uses.get(name, set()) | used
    return Module(definitions, uses, imports)


def _defined_names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines or extends; "" if there are none."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name, *(name for one in node.decorator_list for name in _derived(one))]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _derived(node.value.func) or [""]
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        targets = node.targets if isinstance(node, ast.Assign) else []
    names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    return names or [""]


def _derived(node: ast.expr) -> list[str]:
    """The function whose derivative an expression such as ``f.defvjp`` gives, if it does."""
    if isinstance(node, ast.Attribute) and node.attr in DERIVATIVE_RULES:
        return [node.value.id] if isinstance(node.value, ast.Name) else []
    return []


class Stripper(ast.NodeTransformer):
    """Removes docstrings and raised errors, which affect no measurement."""

    def visit_Raise(self, node: ast.Raise) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def _imports(tree: ast.AST) -> Iterator[tuple[str, Definition]]:
    """Yields each name that a module imports from ``ops``, with its definition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flax_linattn.ops."):
            folder = str(node.module).replace(".", "/")
            for name in node.names:
                path = f"{folder}/{name.name}.py"
                is_module = (ROOT / path).is_file()
                definition = (path, "") if is_module else (f"{folder}.py", name.name)
                yield name.asname or name.name, definition


@functools.cache
def mechanism_code(mechanism: str) -> frozenset[Definition]:
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
def changed_since(commit: str) -> frozenset[Definition]:
    """The definitions of ``ops`` that are not what they were at a commit.

    Args:
        commit: its name; several are separated by commas, of which the first counts.

    Raises:
        HistoryError: The commit is not in the repository.
    """
    commit = commit.partition(",")[0]
    if not git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        raise HistoryError(
            f"commit {commit}, which a stored result names, is not in the repository"
        )
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


class Change(NamedTuple):
    """Code that has changed since a result was measured.

    Attributes:
        mechanisms: their names.
        num_definitions: how many of the definitions that they use.
        definitions: these, as "module.name", if they are few.
    """

    mechanisms: list[str]
    num_definitions: int
    definitions: list[str]

    def __str__(self) -> str:
        everything = len(self.mechanisms) == len(ops.list_mechanisms())
        of = f"all {len(self.mechanisms)} mechanisms" if everything else quoted(self.mechanisms)
        return f"{of} ({quoted(self.definitions) or f'{self.num_definitions} definitions'})"


def find_stale() -> dict[str, Change]:
    """The code that has changed since each stale result was measured.

    Raises:
        HistoryError: it cannot be found out here.
    """
    check_history()
    stale = {}
    for name, results in measured_results().items():
        changed = changed_since(results["commit"])
        own = {one: mechanism_code(one) & changed for one in named_mechanisms(name, results)}
        if own := {one: definitions for one, definitions in own.items() if definitions}:
            definitions = sorted(frozenset.union(*own.values()))
            names = [f"{Path(path).stem}.{one}".rstrip(".") for path, one in definitions]
            listed = names if len(names) <= MAX_LISTED_DEFINITIONS else []
            stale[name] = Change(list(own), len(names), listed)
    return stale


def stored_stale() -> dict[str, Change]:
    """The list that the pages show."""
    stored = json.loads(LIST.read_text()) if LIST.is_file() else {}
    return {name: Change(**change) for name, change in stored.items()}


def what_changed(name: str) -> str:
    """The code that has changed since results were measured, for a page; "" if none has."""
    return str(stored_stale().get(name, ""))


def render(folder: Path = FOLDER) -> str:
    """Writes the page of the stored list and returns it."""
    results = measured_results()
    lines = [
        [f"`{name}`", f"{results[name]['commit']}, {results[name]['date']}", str(change)]
        for name, change in stored_stale().items()
    ]
    first = (
        f"For {len(lines)} of {len(results)} tables of time, memory or rounding errors, the code "
        "of a mechanism has changed since the measurement. A table holds for the commit that it "
        "names; the current code may give other numbers. `python -m experiments.stale` finds these "
        "tables from the history of the repository. Layers and models are not compared."
    )
    header = ["table", "measured", "mechanisms whose code has changed (changed definitions)"]
    return write_page(folder / "stale.md", [first, markdown(header, lines)])


def update() -> None:
    """Writes the current list, or a note why the stored list was not updated."""
    try:
        write_json(LIST, {name: change._asdict() for name, change in find_stale().items()})
    except HistoryError as error:
        print(f"note: {LIST.name} was not updated: {error}.", file=sys.stderr)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    update()
    print(render(), end="")
