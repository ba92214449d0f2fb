"""The package as a whole: its doctests run, its metadata agree, and importing it is quiet."""

import doctest
import importlib
import importlib.metadata
import importlib.resources
import os
import pkgutil
import subprocess
import sys
import zipfile
from typing import Any

import pytest

import flax_linattn

MODULES = (
    "flax_linattn",
    *(m.name for m in pkgutil.walk_packages(flax_linattn.__path__, "flax_linattn.")),
)

COMPILE_MODELS = ("bench", "estimators", "inference", "models", "nn", "ops.engine", "training")
"""Packages whose examples build and run models or their parts, an operation at a time: most of the
seconds of all doctests. They are slow tests, which CI runs in the wheel; what they show, the tests
of their folders check."""


def _doctests(name: str) -> Any:
    slow = f"{name}.".startswith(tuple(f"flax_linattn.{package}." for package in COMPILE_MODELS))
    return pytest.param(name, marks=pytest.mark.slow if slow else ())


@pytest.mark.doctest
@pytest.mark.usefixtures("own_mechanisms")
@pytest.mark.parametrize("name", [_doctests(name) for name in MODULES])
def test_doctests(name):
    """Every example in a docstring runs and prints what it says."""
    module = importlib.import_module(name)
    report: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False
    )
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist(name):
    """What a module lists in __all__ is there, once."""
    module = importlib.import_module(name)
    public = getattr(module, "__all__", ())
    assert [n for n in public if not hasattr(module, n)] == []
    assert len(set(public)) == len(public)


LAZY = {
    "__init__.py": "from flax_linattn.lazy import attach_stub\n"
    "__getattr__, __dir__, __all__ = attach_stub(__name__)",
    "__init__.pyi": "from sums.adding import add",
    "adding.py": "def add(a, b): return a + b",
    "products.py": "def multiply(a, b): return a * b",  # which the stub does not name
}
LAZY_USE = """
assert "add" not in vars(sums) and sums.add(1, 2) == 3 and sums.products.multiply(2, 3) == 6
assert {"add", "__name__"} <= {*dir(sums)} and sums.__all__ == ["add"]
assert not hasattr(sums, "wrong") and not hasattr(sums, "add.wrong")
from sums import *; import flax_linattn; data = flax_linattn.data
assert add is sums.add and data.episodes.write_episodes and not hasattr(flax_linattn, "dat")
"""


def test_lazy_packages(tmp_path):
    """A package finds its names and submodules in a fresh process, and from a zip."""
    with zipfile.ZipFile(tmp_path / "sums.zip", "w") as file:
        for name, text in LAZY.items():
            file.writestr(f"sums/{name}", text)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'sums.zip')!r}); import sums{LAZY_USE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_is_the_installed_one():
    assert importlib.metadata.version("flax-linattn") == flax_linattn.__version__


def test_types_are_published():
    assert importlib.resources.files("flax_linattn").joinpath("py.typed").is_file()


@pytest.mark.parametrize("package", ["models", "inference", "training", "tasks", "estimators"])
def test_imports_leave_out_what_first_use_loads(package):
    """Orbax and SciPy take half a second, and only files and closed-form fits need them."""
    code = f"import flax_linattn.{package}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    late = {"matplotlib", "orbax.checkpoint", "scipy.optimize", "scipy.special", "sklearn"}
    assert late & {*done.stdout.split()} == set()


def test_import_is_quiet_and_starts_no_backend():
    """Importing warns of nothing and takes no device: the user may still configure jax."""
    code = (
        "import flax_linattn, jax\n"
        "jax.config.update('jax_num_cpu_devices', 3)\n"
        "assert jax.device_count('cpu') == 3"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
