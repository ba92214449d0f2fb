"""The list of measurements of older code: it is true, and pages show it."""

from pathlib import Path

import pytest

from experiments import stale
from flax_linattn import ops


def test_the_list_is_what_the_history_says() -> None:
    try:
        found = stale.find_stale()
    except stale.HistoryError as error:
        pytest.skip(str(error))
    assert found == stale.stored_stale(), "python -m experiments.report"


def test_pages_show_the_list(tmp_path: Path) -> None:
    page = stale.render(tmp_path)
    assert page == (stale.FOLDER / "stale.md").read_text(), "python -m experiments.report"
    for name in stale.stored_stale():
        assert f"| `{name}` | " in page
        own = (stale.FOLDER / f"{name}.md").read_text()
        assert "| stale | " in own or name == "efficiency/ratios"  # the page of flax-linattn bench


def test_only_code_counts() -> None:
    """Neither comments nor docstrings do; a changed number does."""
    source = 'def f():\n    """One."""\n    return 1  # so\n'
    other = source.replace("One", "Two").replace("  # so", "")
    assert stale.syntax(source) == stale.syntax(other) != stale.syntax(other.replace("1", "2"))


def test_a_mechanism_is_found_with_its_code() -> None:
    results = {"size": {"mechanisms": ["aft"]}, "rows": [{"results": {"EA-2": 1, "softmax by": 2}}]}
    assert stale.named_mechanisms("a/b", results) == ["softmax", "elementwise_series", "aft"]
    assert stale.named_mechanisms("a/taylorshift_order", {}) == ["taylorshift"]
    code = stale.code_paths("aft")
    assert f"{stale.OPS}/mechanisms/aft.py" in code and f"{stale.OPS}/engine/cache.py" in code
    assert not any("/contract/" in path for name in ops.list_mechanisms() for path in code)


def test_without_a_whole_history_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "git", lambda *arguments: "true\n")
    with pytest.raises(stale.HistoryError, match="whole history"):
        stale.find_stale()
