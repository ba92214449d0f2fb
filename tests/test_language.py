"""The language of the package (CONTRIBUTING.md): words that do not name anything by themselves, or
that the field has another word for, do not come back in names and in first lines of docstrings.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import flax_linattn

PACKAGE = Path(flax_linattn.__file__).parent
EXPERIMENTS = PACKAGE.parent / "experiments"

FORBIDDEN = (
    "told tell tells kept drawn draw yardstick yardsticks placed shown found seen asked anew mend "
    "mended doctored most largest least smallest deviation share beside behind several member "
    "marks mark clone clones imitate"
)
"""Words of names: a baseline is no yardstick, a limit is MAX_ or MIN_, a participle is no name."""
PHRASES = re.compile(
    r"\b(yardsticks?|tells?|told|anew|doctored|at hand|worked off|those (that|of|which)|of such|"
    r"so many|of before|in (its|their) place|what is known|as if (it|they)|beside)\b",
    re.IGNORECASE,
)
"""Phrases of docstrings, comments, help texts and messages that a reader has to translate."""
FROM_SCIKIT_LEARN = "The feature names should match those that were passed during fit.\n"
MIN_WORDS, MAX_CHARACTERS = 5, 90


def folder_of(path):
    parts = path.parts
    if parts[0] == "tasks" and len(parts) > 2:
        return f"tasks/{parts[1]}"
    return parts[0] if len(parts) > 1 else "top"


def words(name):
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def faults(path, source):
    """(kind, where) of each fault in a module."""
    tree = ast.parse(source)
    if not ast.get_docstring(tree):
        yield "modules without docstring", f"{path}:1"
    if words(path.stem) & set(FORBIDDEN.split()):
        yield "names", f"{path}:1 module"
    for node in ast.walk(tree):
        names, kind = [], "variables"
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names, kind = [node.name], "names"
            if re.search(r"_of$|^_?(of|as)_", node.name):
                yield "names by preposition", f"{path}:{node.lineno} {node.name}"
            if text := ast.get_docstring(node):
                first, line = text.split("\n\n")[0], text.splitlines()[0]
                where = f"{path}:{node.lineno} {node.name}: {line}"
                if len(first.split()) < MIN_WORDS:
                    yield "short docstrings", where
                if len(line) > MAX_CHARACTERS:
                    yield "long first lines", where
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names, kind = [node.id], "names" if node.id.isupper() else "variables"
        for name in names:
            if words(name) & set(FORBIDDEN.split()):
                yield kind, f"{path}:{node.lineno} {name}"


def phrases(path, source):
    """(kind, where) of each forbidden phrase in strings and comments."""
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts.append((token.start[0], token.string))
    for line, text in texts:
        if text != FROM_SCIKIT_LEARN:
            for match in PHRASES.finditer(text):
                row = line + text.count("\n", 0, match.start())
                yield "phrases", f"{path}:{row} {match[0]}"


def all_faults():
    found = {}
    for root in (PACKAGE, EXPERIMENTS):
        for file in sorted(root.rglob("*.py")):
            path = file.relative_to(root)
            folder = folder_of(path) if root == PACKAGE else "experiments"
            found.setdefault(folder, []).extend(faults(path, file.read_text()))
            found[folder].extend(phrases(path, file.read_text()))
    return found


FAULTS = all_faults()


@pytest.mark.parametrize("folder", sorted(FAULTS))
def test_language(folder):
    """A failure lists each place; ``pytest -k 'language and ops'`` chooses a folder."""
    here = [f"{kind}: {where}" for kind, where in FAULTS[folder]]
    assert here == [], f"{len(here)} in {folder}:\n" + "\n".join(here)


if __name__ == "__main__":  # each place
    for folder, here in sorted(FAULTS.items()):
        for kind, where in sorted(here):
            print(f"{folder} {kind}: {where}")
