"""Pages with examples run here, too: on eight devices, warnings as errors."""

import doctest
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops, tasks, training

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```\{doctest\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    path.relative_to(DOCS).with_suffix("").as_posix()
    for folder in ("tutorials", "guides", "concepts")
    for path in sorted((DOCS / folder).glob("*.md"))
    if BLOCK.search(path.read_text())
]
pytestmark = pytest.mark.skipif(
    not DOCS.is_dir(), reason="the documentation is not part of the installed package"
)


def examples(text: str) -> str:
    """The {doctest} blocks, at the lines where they stand, as the docs build joins them."""
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for i, line in enumerate(block[1].splitlines()):
            lines[first + i] = line
    return "\n".join(lines) + "\n"


FAST = ("tutorials/flax-layer",)
"""The docs build, which every change passes, runs all of them."""


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PAGES],
)
def test_page(name: str) -> None:
    path = DOCS / f"{name}.md"
    test = doctest.DocTestParser().get_doctest(examples(path.read_text()), {}, name, str(path), 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False
    )
    with jax.numpy_dtype_promotion("standard"):  # as users have it, and optax needs it
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_a_mechanism_written_by_hand_is_on_the_ladder(own_mechanisms, tmp_path):
    """The file of the guide on symbols: its mechanism agrees with its reference, and is trained."""
    runpy.run_path(str(DOCS / "guides" / "relu.py"))
    relu = ops.get_mechanism("relu")
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 2, 4))
    expected = relu.reference(q, k, v, is_causal=True)
    for form in ("parallel", "chunked", "recurrent"):
        y = relu.attend(q, k, v, is_causal=True, form=form)
        assert jnp.allclose(y, expected, atol=1e-5)
    sizes = {"base": 4, "features": 4, "delay": 1, "context": 6, "epochs": 3, "test_series": 1}
    config = tasks.get_task("synthetic").Config.of(mechanism="relu", **sizes)
    values = tasks.train("synthetic", config, training.Session(tmp_path, progress=False))
    assert values["mechanism"] == "relu"


@pytest.mark.slow
def test_workers_on_ray_train_as_one_process(tmp_path):
    """The file of the guide on devices, on two workers and in this process: equal losses."""
    pytest.importorskip("ray.train", reason="ray[train] is not installed")
    script = DOCS / "guides" / "train_on_ray.py"
    environment = os.environ | {"XLA_FLAGS": "", "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, script, tmp_path / "two", "2"], check=True, env=environment)
    with jax.numpy_dtype_promotion("standard"):
        one = runpy.run_path(str(script))["fit"](tmp_path / "one").history
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    two = [json.loads(line) for line in lines]
    for name in ("train_loss", "validation_loss"):
        losses = ([values[name] for values in history] for history in (two, one))
        np.testing.assert_allclose(*losses, rtol=1e-5)


def test_every_table_is_linked_where_the_site_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``efficiency_directive.links`` says with which line."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    directive = importlib.import_module("efficiency_directive")
    pages = {page: page.read_text() for page in sorted(DOCS.rglob("*.md"))}
    found = [(page, *each) for page in pages for each in directive.links(page)]
    assert len(found) > 60 and directive.LINKS.sub("", f"a\n{found[0][2]}b") == "a\nb"
    assert [
        (page.name, line) for page, block, line in found if block + line not in pages[page]
    ] == []
