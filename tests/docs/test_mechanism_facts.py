"""What the pages say of a mechanism is what the registry and the shapes say."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from flax_linattn import inference, ops

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the documentation is not part of the installed package"
)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    return importlib.import_module("mechanism_facts")


def test_facts_of_a_streaming_mechanism(module: ModuleType) -> None:
    facts = module.facts("taylorshift")
    assert "recurrent in constant memory" in facts["offers"]
    assert "does not offer" not in facts
    assert "`switch='speed'`" in facts["hyperparameters"]
    assert facts["own arguments of `attend`, `step`"] == "`temperature`"
    assert facts["learned by a layer"] == "`temperature` [8]"
    size = inference.state_bytes(ops.get_mechanism("taylorshift").init_state(1, 8, 64, 64))
    assert facts["state"] == f"{size:,} bytes, at any length"


def test_facts_of_arguments_of_a_token(module: ModuleType) -> None:
    facts = module.facts("gated_delta")
    expected = "`log_decay` [B, S, H] at most 0, `beta` [B, S, H] at least 0 and at most 1"
    assert facts["arguments of a token"] == expected
    assert facts["offers"].endswith("made for queries and keys of length 1, as layers give it")
    assert module.state_bytes("gated_delta", 1_000) == 8 * 64 * 64 * 4
    assert "arguments of a token" not in module.facts("retention")


def test_a_cache_keeps_arguments_of_a_token(module: ModuleType) -> None:
    assert module.state_bytes("forgetting", 1_000) == 1_000 * (2 * 8 * 64 + 8) * 4 + 4


def test_facts_without_a_state(module: ModuleType) -> None:
    facts = module.facts("linformer")
    assert facts["does not offer"] == "causal, packed sequences, recurrent"
    assert facts["state"] == "none" and module.state_cells("linformer") == ["no state"] * 2


def test_a_cache_holds_keys_values_and_a_length(module: ModuleType) -> None:
    assert module.state_bytes("softmax", 1_000) == 1_000 * 2 * 8 * 64 * 4 + 4


@pytest.mark.parametrize("name", ops.list_mechanisms())
def test_every_mechanism_has_its_page_and_its_figure(name: str) -> None:
    page = (ROOT / "docs" / "mechanisms" / f"{name}.md").read_text()
    assert "```{mechanism-facts}" in page and "```{mechanism-weights}" in page
    assert (ROOT / "docs" / "figures" / f"weights-{name}.png").is_file()
