"""Numbers in the prose of the documentation are those of the stored results."""

import importlib
from types import ModuleType

import pytest

from tests.experiments.prose import Allowed, Sentence, page, prose, spelled, unchecked

PAGES = ("time-series", "results", "efficiency", "synthetic", "events", "offline-rl", "sequences")
WITH_SENTENCES = (*PAGES, "README", "concepts/choose-a-mechanism")


def checks(name: str) -> ModuleType:
    name = name.rpartition("/")[2].lower().replace("-", "_")
    return importlib.import_module(f"tests.experiments.prose.{name}")


def sentences() -> list:
    return [
        pytest.param(name, sentence, id=f"{name}: {sentence.text[:60]}")
        for name in WITH_SENTENCES
        for sentence in checks(name).SENTENCES
    ]


@pytest.mark.parametrize(("name", "sentence"), sentences())
def test_a_sentence_has_the_numbers_of_the_stored_results(name: str, sentence: Sentence) -> None:
    written = " ".join(sentence.written().split())
    assert written in page(name), f"docs/{name}.md is to say: {written}"


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_recomputed_or_allowed(name: str) -> None:
    module = checks(name)
    phrases = [" ".join(sentence.written().split()) for sentence in module.SENTENCES]
    found = unchecked(page(name), [*phrases, *(allowed.text for allowed in module.ALLOWED)])
    assert not found, f"numbers of docs/{name}.md without a sentence in prose/: " + "; ".join(found)


@pytest.mark.parametrize("name", PAGES)
def test_what_is_allowed_is_there(name: str) -> None:
    gone: list[Allowed] = [a for a in checks(name).ALLOWED if a.text not in page(name)]
    assert not gone


def test_a_wrong_number_is_found() -> None:
    text = prose("# A\n\n```{include} 0.9.md\n```\nOurs is 1.5 to\n2 % above `0.3`, [x](a-1.2.md).")
    sentence = Sentence("is {:.1f} to {} %", lambda: (1.5, 2))
    assert text == "# A Ours is 1.5 to 2 % above `0.3`, [x](a-1.2.md)."
    assert unchecked(text, [sentence.written()]) == []
    assert len(unchecked(text, ["is 1.4 to 2 %"])) == 2
    assert len(unchecked("4e-4 of 30 runs, 1,024 bytes, - 3 ± 1 points", [])) == 4
    assert (spelled(4), spelled(20)) == ("four", "20")
