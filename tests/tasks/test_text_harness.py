"""Runs in lm-evaluation-harness: log-likelihoods, and texts up to a stop text."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn.tasks.text.generate import TextGenerator
from flax_linattn.tasks.text.harness import (
    generate_until,
    harness_model,
    score_continuation,
    score_text,
)
from tests.tasks.test_text_generate import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("text") / "a.txt")


def expected(run, text):
    """Log-probability of each byte of a text after a newline, and the most likely bytes."""
    tokens = np.frombuffer(b"\n" + text.encode(), np.uint8).astype(np.int32)
    logits = np.asarray(run.model(jnp.asarray(tokens[None]))[0, :-1])
    log_p = np.asarray(jax.nn.log_softmax(logits.astype(np.float32)))
    return log_p[np.arange(len(tokens) - 1), tokens[1:]], log_p.argmax(axis=1) == tokens[1:]


def test_a_continuation_is_scored_after_its_context(run):
    log_p, right = expected(run, "A small text")
    value, is_greedy = score_continuation(run, "A small", " text")
    assert value == pytest.approx(log_p[7:].sum(), abs=1e-3)
    assert is_greedy == right[7:].all()
    # A space at the end of the context is scored with the word after it.
    assert score_continuation(run, "A small ", "text") == (value, is_greedy)
    assert score_continuation(run, "", "A")[0] == pytest.approx(log_p[0], abs=1e-4)


@pytest.mark.parametrize("mechanism", ["gated_delta", "softmax"])
def test_a_text_is_scored_as_a_whole(tmp_path, mechanism):
    run, text = make_run(tmp_path / "a.txt", mechanism=mechanism), "A small text, " * 50
    assert score_text(run, text) == pytest.approx(expected(run, text)[0].sum(), rel=1e-5)


def test_contexts_and_texts_longer_than_learned_positions(tmp_path):
    """Contexts lose their first tokens, and texts are scored by windows."""
    run, text = make_run(tmp_path / "a.txt", position="learned"), "A small text, of two lines."
    assert run.model.num_positions == 16

    def score(text):
        """Log-probability of each byte after the first one."""
        tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        log_p = jax.nn.log_softmax(run.model(jnp.asarray(tokens[None, :-1]))[0])
        return np.asarray(log_p)[np.arange(len(tokens) - 1), tokens[1:]]

    first, rest = score("\n" + text[:16]), score(text[15:])
    assert score_text(run, text[:3]) == pytest.approx(first[:3].sum(), rel=1e-5)
    assert score_text(run, text) == pytest.approx(first.sum() + rest.sum(), rel=1e-5)
    value, _ = score_continuation(run, text[:20], text[20:])
    assert value == pytest.approx(score(text[-17:])[-7:].sum(), rel=1e-5)
    with pytest.raises(ValueError, match="a continuation of at most 16 tokens"):
        score_continuation(run, "A", text)
    options = {"max_gen_toks": 4, "until": [""]}
    assert generate_until(run, text, options) == generate_until(run, text[-11:], options)


def test_generation_is_greedy_unless_a_task_samples(run):
    greedy = "".join(TextGenerator(run, "A", max_tokens=8, temperature=0))
    assert generate_until(run, "A", {"max_gen_toks": 8, "until": []}) == greedy
    cut = generate_until(run, "A", {"max_gen_toks": 8, "until": [greedy[3]]})
    assert cut == greedy.partition(greedy[3])[0]
    sampled = generate_until(run, "A", {"max_gen_toks": 8, "do_sample": True, "temperature": 2.0})
    assert sampled != greedy


def test_a_local_task_of_the_harness(run, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    rows = [{"text": "A small", "target": " text"}, {"text": "of two", "target": " lines"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "local", "dataset_path": "json", "output_type": "loglikelihood",
        "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test",
        "doc_to_text": "{{text}}", "doc_to_target": "{{target}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    }  # fmt: skip
    found = lm_eval.simple_evaluate(harness_model(run), tasks=[task], bootstrap_iters=0)
    values = [score_continuation(run, row["text"], row["target"])[0] for row in rows]
    perplexity = found["results"]["local"]["perplexity,none"]
    assert perplexity == pytest.approx(np.exp(-np.mean(values)), rel=1e-4)
