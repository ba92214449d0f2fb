"""The list of measurements of older code: it is true, and pages show it."""

import json
from pathlib import Path

import pytest

from experiments import stale


def test_the_list_is_what_the_history_says() -> None:
    try:
        stale.check_history()
    except stale.HistoryError as error:
        pytest.skip(str(error))
    assert stale.find_stale() == stale.stored_stale(), "python -m experiments.report"


def test_pages_show_the_list(tmp_path: Path) -> None:
    page = stale.render(tmp_path)
    assert page == (stale.FOLDER / "stale.md").read_text(), "python -m experiments.report"
    for name in stale.stored_stale():
        assert f"| `{name}` | " in page
        own = (stale.FOLDER / f"{name}.md").read_text()
        assert "| stale | " in own or name == "efficiency/ratios"  # the page of flax-linattn bench


def test_every_stored_commit_is_in_the_history() -> None:
    """Without it, nobody can read the code that was measured."""
    try:
        stale.check_history()
    except stale.HistoryError as error:
        pytest.skip(str(error))
    known = {commit[:7] for commit in stale.git("rev-list", "HEAD").split()}
    results = [(file, json.loads(file.read_text())) for file in stale.FOLDER.glob("**/*.json")]
    heads = [(file, each) for file, each in results if "commit" in each]
    heads += [(file, run["made"]) for file, each in results for run in each.get("runs", ())]
    assert heads
    lost = {file.stem for file, head in heads
            if not {one[:7] for one in head["commit"].split(", ")} <= known}  # fmt: skip
    assert not lost, "measure them again at a commit of this history"


def test_only_code_counts() -> None:
    """Neither comments nor docstrings do; a changed number does."""
    source = 'def f():\n    """One."""\n    return 1  # so\n'
    plain = "def f():\n    return 1\n"
    assert stale.parse(plain).definitions == stale.parse(source).definitions
    from_a, from_b = (f"from {stale.OPS.replace('/', '.')}.{x} import f\ny = f(1)" for x in "ab")
    assert stale.parse(from_a).definitions != stale.parse(from_b).definitions
    rule = f"{plain}f.defvjp(g, h)\n@f.defjvp\ndef rule(): pass\n"
    assert stale.parse(rule).uses["f"] == {"g", "h", "f", "f.defvjp", "f.defjvp"}
    other = source.replace("One", "Two").replace("  # so", "")
    first, same, last = (stale.parse(x).definitions for x in (source, other, source + "f(2)\n"))
    assert first == same == {"f": last["f"]} != last
    assert stale.parse(other.replace("1", "2")).definitions != first
    assert stale.parse("A, B = 1, 2\nC: int = 3\nf(B)").definitions.keys() == {"A", "B", "C", ""}
    checked = source.replace("    return", "    if x: raise ValueError('x')\n    return")
    assert (
        stale.parse(checked).definitions == stale.parse(checked.replace("'x'", "'y'")).definitions
    )


def test_a_mechanism_is_found_with_its_code() -> None:
    results = {"size": {"mechanisms": ["aft"]}, "rows": [{"results": {"EA-2": 1, "softmax by": 2}}]}
    assert stale.named_mechanisms("a/b", results) == ["softmax", "elementwise_series", "aft"]
    assert stale.named_mechanisms("a/taylorshift_order", {}) == ["taylorshift"]
    assert stale.named_mechanisms("offline_rl/latency", {}) == ["softmax", "aaren"]
    assert all(stale.named_mechanisms(*one) for one in stale.measured_results().items())
    by_result = stale.measured_results().keys()
    assert stale.MECHANISMS_BY_RESULT.keys() <= by_result
    code = stale.mechanism_code("aft")
    paths = {path for path, _ in code}
    assert f"{stale.OPS}/mechanisms/aft.py" in paths and f"{stale.OPS}/engine/cache.py" in paths
    assert (f"{stale.OPS}/contract/numerics.py", "overwrite") in code
    assert (f"{stale.OPS}/contract/numerics.py", "safe_divide") in stale.mechanism_code("linear")
    assert (f"{stale.OPS}/engine/blocks.py", "_attend_backward") in stale.mechanism_code("softmax")
    assert any(name == "_backward_tokens" for _, name in stale.mechanism_code("aaren"))
    assert not paths & stale.ARGUMENT_CHECKS and all(
        (stale.ROOT / path).is_file() for path in paths
    )


def test_without_a_whole_history_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "git", lambda *arguments: "true\n")
    with pytest.raises(stale.HistoryError, match="whole history"):
        stale.find_stale()
