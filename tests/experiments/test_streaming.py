"""The measurement of long streams runs, and its page shows what it measured."""

import dataclasses
import json

import pytest

pytest.importorskip("experiments", reason="the experiments are not part of the installed package")

from experiments.streaming import loop


def test_the_loop_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MECHANISMS", ("aaren",))
    size = loop.Size(lengths=(8, 16), batches=(2,), rounds=1, calls=3)
    experiment = dataclasses.replace(loop.EXPERIMENT, sizes={"": size})
    experiment.collect("", tmp_path, progress=False)
    page = experiment.render("", tmp_path)
    assert "| 8 tokens | 16 tokens |" in page and "2,112 bytes" in page
    assert "`python -m experiments.streaming.loop`" in page
    loops, step = json.loads((tmp_path / "loop.json").read_text())["rows"]
    assert [facts["state_bytes"] for facts in loops["lengths"]] == [2112, 2112]
    assert all(facts["finite"] and facts["us"] > 0 for facts in loops["lengths"])
    assert step["donated_us"] > 0
