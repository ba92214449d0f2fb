"""Ratios, bars and the gate, on made-up measurements."""

from typing import Any

import pytest

from flax_linattn.bench.ratio import Ratio, find_regressions, ratios
from flax_linattn.bench.report import ratios_table, regressions_table, times_table


def row(repeat: int = 0, *, peer_ms: float = 6.0, peer_bytes: int = 50_000_000) -> dict[str, Any]:
    def result(ms: float, size: int) -> dict[str, Any]:
        times = {"median": ms, "min": ms, "max": ms}
        return {"milliseconds": times, "temporary_bytes": size, "compile_seconds": 1.0}

    results = {"ours": result(2.0, 2_000_000), "associative_scan": result(peer_ms, peer_bytes)}
    key = {"comparison": "aaren", "length": 16384, "pass": "forward and backward"}
    return {**key, "repeat": repeat, "curve": False, "results": results}


def test_ratios_are_kept_by_repeat() -> None:
    (ratio,) = ratios([row(), row(1, peer_ms=8.0)])
    assert ratio.time == (3.0, 4.0) and ratio.memory == 25.0
    assert "| 3.5 (3 - 4) | 25 |" in ratios_table([ratio])


def test_a_peer_that_was_not_run_has_a_memory_ratio_only() -> None:
    made = row()
    del made["results"]["associative_scan"]["milliseconds"]
    made["results"]["associative_scan"]["not_run"] = "needs 9.0 GB"
    (ratio,) = ratios([made])
    assert ratio.time == () and "| not run | 25 |" in ratios_table([ratio])
    assert "needs 9.0 GB" in times_table([made])


def test_a_peer_that_does_not_compile_has_none() -> None:
    made = row()
    made["results"]["associative_scan"] = {"not_run": "does not compile: no cuDNN"}
    assert ratios([made]) == []
    assert "does not compile: no cuDNN | - | - | - |" in times_table([made])


def test_the_gate_sees_falls_beyond_the_factor_only() -> None:
    before = ratios([row()])
    assert find_regressions(ratios([row(peer_ms=4.1)]), before, 1.5) == []
    (fall,) = find_regressions(ratios([row(peer_ms=3.0)]), before, 1.5)
    assert fall.quantity == "time" and (fall.before, fall.now) == (3.0, 1.5)
    assert "| time | 3 | 1.5 |" in regressions_table([fall])
    (fall,) = find_regressions(ratios([row(peer_bytes=20_000_000)]), before, 1.5)
    assert fall.quantity == "memory"


def test_the_gate_does_not_tell_small_memory_apart() -> None:
    ratio = Ratio("aaren", 1, "forward", "scan", (1.0,), 4000.0, 40.0)
    assert find_regressions([ratio._replace(memory=400.0)], [ratio], 1.5) == []


def test_the_gate_refuses_to_compare_nothing() -> None:
    ratio = Ratio("aaren", 1, "forward", "scan", (1.0,), 1.0, 1.0)
    with pytest.raises(ValueError, match="no comparison in common"):
        find_regressions([ratio], [ratio._replace(length=2)], 1.5)
