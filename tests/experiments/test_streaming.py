"""The measurements of long streams run, and their pages show what they measured."""

import dataclasses
import json

from experiments.streaming import latency, loop


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


def test_the_latency_of_a_stream_is_measured(tmp_path):
    size = latency.Size(counts=(2, 4), softmax_counts=(2,), features=16, num_layers=1)
    experiment = dataclasses.replace(latency.EXPERIMENT, sizes={"": size})
    experiment.collect("", tmp_path, progress=False)
    page = experiment.render("", tmp_path)
    stored = json.loads((tmp_path / "latency.json").read_text())
    marks = stored["rows"][0]["streams"]
    assert [mark["observations"] for mark in marks["aaren"]] == [2, 4]
    assert len(marks["softmax, cache"]) == 1
    assert all(mark["finite"] and mark["compilations"] == 1 for mark in marks["aaren"])
    assert marks["aaren"][0]["state_bytes"] == marks["aaren"][1]["state_bytes"]
    assert f"{marks['aaren'][0]['state_bytes']:,} bytes" in page and stored["cores"]
