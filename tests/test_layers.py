"""Knowledge flows one way: nothing below the command line names a flag, nothing outside a task's
folder names the task, and nothing in the package names a paper's table. And what may stand in the
tree is counted.
"""

import ast
import functools
import inspect
import re
from pathlib import Path

import pytest

import flax_linattn
from flax_linattn import registry, tasks

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
    "serve": {"data", "training", "tasks", "estimators", "bench", "cli"},
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


def test_no_flag_below_the_command_line():
    others = ("--xla", "--porcelain", "--untracked-files", "--short")  # of XLA and git
    flags = [
        f"{name}:{line}: {flag}"
        for name in BELOW
        for line, text in strings(name)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
        if not flag.startswith(others)
    ]
    assert flags == []


WORDS = {"image", "sequence", "text"}
"""Names of tasks that are names of columns and options, too."""
FACES = {"estimators/forecaster.py": "forecast", "estimators/classifier.py": "classify"}
"""Files outside a task's folder that are that task for Python, as its command is for a shell."""


@pytest.mark.parametrize("task", registry.TASKS)
def test_no_task_outside_its_folder(task):
    """By its name as a value; the registry names every task."""
    folder = task.replace("-", "_")
    use = re.compile(rf"(get_task\(|name == )['\"]{task}['\"]|tasks\.{folder}")
    others = [
        name
        for name in BELOW
        if name != "registry.py"
        and not name.startswith(f"tasks/{folder}/")
        and FACES.get(name) != task
    ]
    assert [name for name in others if use.search((PACKAGE / name).read_text())] == []
    if task not in WORDS:
        named = [f"{name}:{n}" for name in others for n, text in strings(name) if text == task]
        assert named == []


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
    of_nn = ["attention", "block", "decoder", "latent_attention"]
    of_nn += ["position_bias", "position_bias", "projected"]  # two kinds of biases by head
    assert declared == ["models/layers.py", *(f"nn/{name}.py" for name in of_nn)]


TESTS = Path(__file__).parent

BUDGETS = {
    "lines of the package": 80_690,
    "files of the package": 410,
    "files of fewer than 60 lines in the package": 53,
    "lines of tasks": 19_120,
    "lines of data": 15_131,
    "lines of tests": 61_853,
    "methods of Task": 13,
}
"""What may stand in the tree. Whoever needs more raises a number here and says in the commit why;
whoever removes something lowers it. Targets: 58,000 lines in 370 files, 13,000 of tasks, 12,000 of
data, 42,000 of tests, 14 methods.
"""


def test_growth_is_a_decision():
    sizes = {path: len(path.read_text().splitlines()) for path in python_files(PACKAGE)}
    methods = [name for name, value in vars(tasks.Task).items() if inspect.isfunction(value)]
    found = {
        "lines of the package": sum(sizes.values()),
        "files of the package": len(sizes),
        "files of fewer than 60 lines in the package": sum(size < 60 for size in sizes.values()),
        **{f"lines of {folder}": lines_of(PACKAGE / folder) for folder in ("tasks", "data")},
        "lines of tests": lines_of(TESTS),
        "methods of Task": len([name for name in methods if not name.startswith("_")]),
    }
    assert {name: (n, BUDGETS[name]) for name, n in found.items() if n > BUDGETS[name]} == {}


def python_files(folder):
    return sorted(folder.rglob("*.py"))


def lines_of(folder):
    return sum(len(path.read_text().splitlines()) for path in python_files(folder))
