"""Knowledge flows one way: nothing below the command line names a flag, nothing outside a task's
folder names the task, and nothing in the package names a paper's table.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

import flax_linattn
from flax_linattn import registry

PACKAGE = Path(flax_linattn.__file__).parent
FILES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
BELOW = [name for name in FILES if not name.startswith("cli/")]

LAYERS = {
    "ops": {"nn", "models", "data", "training", "inference", "tasks", "bench", "cli"},
    "nn": {"models", "data", "training", "inference", "tasks", "bench", "cli"},
    "checkpoint": {"ops", "nn", "models", "data", "training", "inference", "tasks", "cli"},
    "models": {"data", "training", "inference", "tasks", "bench", "cli"},
    "data": {"nn", "models", "training", "inference", "tasks", "control", "bench", "cli"},
    "control": {"nn", "models", "training", "inference", "tasks", "bench", "cli"},
    "training": {"nn", "models", "inference", "tasks", "bench", "cli"},
    "inference": {"data", "training", "tasks", "bench", "cli"},
    "tasks": {"estimators", "bench", "cli"},
    "estimators": {"bench", "cli"},
    "bench": {"tasks", "estimators", "cli"},
    "cli": {"estimators"},
}
"""Folder -> those that it must not import."""


@functools.cache
def strings(name):
    """All text of a file: names in it, and docstrings, with their lines."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse((PACKAGE / name).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize("name", BELOW)
def test_no_flag_below_the_command_line(name):
    flags = [
        (line, flag)
        for line, text in strings(name)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
    ]
    others = ("--xla", "--porcelain", "--untracked-files", "--short")  # of XLA and git
    assert [flag for flag in flags if not flag[1].startswith(others)] == []


WORDS = {"image", "sequence"}
"""Names of tasks that are names of columns and options, too."""
FACES = {"estimators/forecaster.py": "forecast", "estimators/classifier.py": "classify"}
"""Files outside a task's folder that are that task for Python, as its command is for a shell."""


@pytest.mark.parametrize("name", BELOW)
def test_no_task_outside_its_folder(name):
    """By its name as a value; the registry names every task."""
    if name == "registry.py":
        return
    text = (PACKAGE / name).read_text()
    for task in registry.TASKS:
        if not name.startswith(f"tasks/{task}/") and FACES.get(name) != task:
            if task not in WORDS:
                assert [line for line, value in strings(name) if value == task] == []
            assert re.search(rf"(get_task\(|name == )['\"]{task}['\"]", text) is None
            assert f"tasks.{task}" not in text


@pytest.mark.parametrize("folder", LAYERS)
def test_imports_lead_downwards(folder):
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flax_linattn"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "flax_linattn" and len(parts) > 1:
                    assert parts[1] not in LAYERS[folder], f"{path}:{node.lineno}: {name}"


def test_options_of_layers_are_declared_once():
    """``num_heads`` as an argument or a field: of the layers that have heads, and ``Layers``."""
    declared = [
        name
        for name in FILES
        if name.startswith(("nn/", "models/", "tasks/", "cli/"))
        for node in ast.walk(ast.parse((PACKAGE / name).read_text()))
        if (isinstance(node, ast.arg) and node.arg == "num_heads")
        or (isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "num_heads")
    ]
    of_nn = ["block", "decoder", "latent_attention", "projected"]
    assert declared == ["models/layers.py", *(f"nn/{name}.py" for name in of_nn)]
