"""Mechanisms whose files a change touches, of which CI runs the slow cases, too.

``python -m tests.contract.changed`` prints an expression for pytest's ``-k``, or nothing, and says
on stderr why. A change is what differs from the last landed commit: ``FLAX_LINATTN_BASE``, or where
HEAD left the branch that it was cloned from, or the commit before. Comments, docstrings and layout
are no change.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from flax_linattn import ops
from tests.contract.representatives import expression, of_file

ROOT = Path(__file__).parents[2]
OPS = "flax_linattn/ops/"
MAX_MECHANISMS = 4
"""More of them would take longer than all the rest of CI."""


def homes() -> dict[str, list[str]]:
    """File below ``OPS`` -> the mechanisms that are written in it."""
    found: dict[str, list[str]] = {}
    for name in ops.list_mechanisms():
        module = type(ops.get_mechanism(name)).__module__
        found.setdefault(f"mechanisms/{module.rpartition('.')[2]}.py", []).append(name)
    return found


def mechanisms_of(paths: Iterable[str]) -> list[str]:
    """The mechanisms that changed files are judged by, in the order of the paths.

    A mechanism's home is that mechanism's; a file of the engine or of ``ops/contract`` is that of
    its representatives. No other file is any mechanism's.
    """
    own, names = homes(), []
    for path in paths:
        file = path.removeprefix(OPS)
        if path.startswith(OPS):
            names += own.get(file, of_file(file))
    return list(dict.fromkeys(names))


def git(*args: str, root: Path = ROOT) -> str | None:
    """What git prints; None where it fails or is not there."""
    try:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def landed(root: Path = ROOT) -> str | None:
    """The commit to compare with, or None where there is none."""
    head = git("rev-parse", "HEAD", root=root)
    for name in (os.environ.get("FLAX_LINATTN_BASE"), "origin/HEAD", "origin/main", "HEAD^"):
        commit = git("merge-base", "HEAD", name, root=root) if name else None
        if commit and commit != head:
            return commit.strip()
    return None


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Files of ``ops`` whose code differs from that of ``base``, those with most lines first."""
    rows = (git("diff", "--numstat", "--no-renames", base, "--", OPS, root=root) or "").splitlines()
    sizes = {}
    for added, removed, path in (row.split("\t") for row in rows):
        before, after = git("show", f"{base}:{path}", root=root), root / path
        if path.endswith(".py") and not same_code(before, after):
            sizes[path] = int(added) + int(removed)
    return sorted(sizes, key=lambda path: -sizes[path])


def same_code(before: str | None, after: Path) -> bool:
    """Whether both run alike: their syntax trees are equal but for docstrings."""
    if before is None or not after.is_file():
        return False
    return _tree(before) == _tree(after.read_text())


def _tree(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def main() -> None:
    base = landed()
    if base is None:
        print("no earlier commit to compare with: no slow cases.", file=sys.stderr)
        return
    names = mechanisms_of(changed_files(base))
    chosen, others = names[:MAX_MECHANISMS], names[MAX_MECHANISMS:]
    print(f"changed since {base[:12]}: {', '.join(names) or 'no mechanism'}.", file=sys.stderr)
    if others:
        print(f"left out, as more than {MAX_MECHANISMS}: {', '.join(others)}.", file=sys.stderr)
    print(expression(chosen))


if __name__ == "__main__":
    main()
