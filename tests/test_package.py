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
from pathlib import Path
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


LAZY_USE = """
import sums
assert "add" not in vars(sums) and sums.add(1, 2) == 3
assert sums.products.multiply(2, 3) == 6, "of a submodule that the stub does not name"
assert {"add", "__name__"} <= {*dir(sums)} and sums.__all__ == ["add"]
assert not hasattr(sums, "wrong") and not hasattr(sums, "add.wrong")
from sums import *
assert add is sums.add
"""


def test_lazy_packages(tmp_path):
    """A package finds its names and submodules in a fresh process, and from a zip."""
    package = "from flax_linattn.lazy import attach_stub\n"
    package += "__getattr__, __dir__, __all__ = attach_stub(__name__)"
    with zipfile.ZipFile(tmp_path / "sums.zip", "w") as file:
        file.writestr("sums/__init__.py", package)
        file.writestr("sums/__init__.pyi", "from sums.parts.adding import add")
        file.writestr("sums/parts/__init__.py", "")
        file.writestr("sums/parts/adding.py", "def add(a, b): return a + b")
        file.writestr("sums/products.py", "def multiply(a, b): return a * b")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'sums.zip')!r})\n{LAZY_USE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("stub", sorted(Path(flax_linattn.__path__[0]).rglob("__init__.pyi")))
def test_lazy_packages_find_all_submodules(stub):
    """Whatever other modules have imported before."""
    parts = stub.parent.relative_to(Path(flax_linattn.__path__[0]).parent).parts
    package = importlib.import_module(".".join(parts))
    for module in pkgutil.iter_modules(package.__path__):
        assert package.__getattr__(module.name) is getattr(package, module.name)


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
