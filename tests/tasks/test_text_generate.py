"""Generated text: the tokens of ``inference.generate`` as whole characters, and saved prompts."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn import cli, inference, tasks
from flax_linattn.checks import OptionError
from flax_linattn.tasks.text import (
    TextGenerator,
    generate_batch,
    load_prompt,
    save_prompt,
)
from flax_linattn.tasks.text.generate import until
from tests.tasks.commands import SIZES, fail, one_line, succeed

TEXT = "A small text, of two lines.\nÉt un peu de français.\n" * 40


def make_run(path, text=TEXT, **options):
    """A run with parameters as they were initialized."""
    path.write_text(text)
    task = tasks.get_task("text")
    config = task.Config.of(file=path, context=16, short_conv=2, **SIZES, **options)
    spec = task.describe(task.load(config), config)
    return tasks.Run(task, config, spec, task.model(config, spec))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("text") / "a.txt")


@pytest.fixture(scope="module")
def softmax_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("text") / "a.txt", mechanism="softmax")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run folder, after two steps."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text(TEXT)
    sizes = [word for n, v in SIZES.items() for word in (f"--{n.replace('_', '-')}", str(v))]
    args = ["--file", str(folder / "a.txt"), "--context", "16", "--short-conv", "2"]
    args += ["--steps", "2", "--validate-every", "2", "--parallel", "none", *sizes]
    assert cli.main(["train", "text", "--run", str(folder / "run"), *args]) == 0
    return folder / "run"


def greedy(run, prompt, count, **options):
    """The text of the most likely tokens, by ``inference.generate``."""
    tokens = jnp.asarray(np.frombuffer(prompt.encode(), np.uint8).astype(np.int32)[None])
    out = inference.generate(run.model, tokens, count, **options)
    return run.data_spec.make_tokenizer().decode(np.asarray(out.tokens[0])).decode(errors="replace")


def test_the_text_is_that_of_the_tokens(run, softmax_run):
    for own in (run, softmax_run):
        generator = TextGenerator(own, "A small", max_tokens=20, temperature=0)
        assert "".join(generator) == greedy(own, "A small", 20)


def test_samples_depend_on_the_seed_alone(run):
    texts = [
        "".join(TextGenerator(run, "A", max_tokens=20, seed=seed, top_k=50)) for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_batch_has_the_texts_of_single_prompts(run):
    prompts = ["A small text", "É", "of"]
    options = {"max_tokens": 12, "temperature": 0}
    expected = ["".join(TextGenerator(run, prompt, **options)) for prompt in prompts]
    assert generate_batch(run, prompts, **options) == expected


@pytest.mark.parametrize("name", ["run", "softmax_run"])
def test_a_saved_prompt_goes_on_as_the_whole_prompt(name, request, tmp_path):
    """With new text after it, and with none; the file can be read many times."""
    run, path = request.getfixturevalue(name), tmp_path / "prompt.npz"
    whole = "".join(TextGenerator(run, "A small text, of", max_tokens=12, temperature=0))
    first = TextGenerator(run, "A small text,", max_tokens=0, max_length=64)
    assert "".join(first) == ""
    save_prompt(path, run, first.prompt_state)
    for _ in range(2):
        loaded = load_prompt(path, run)
        options = {"max_tokens": 12, "temperature": 0, "prompt_state": loaded}
        assert "".join(TextGenerator(run, " of", **options)) == whole
    begun = TextGenerator(run, "A small text, of", max_tokens=5, temperature=0, max_length=64)
    text = "".join(begun)
    options = {"max_tokens": 7, "temperature": 0, "prompt_state": begun.prompt_state}
    rest = TextGenerator(run, "", **options)
    # A character may be divided at the border.
    assert (text + "".join(rest))[:4] == whole[:4]


def test_a_prompt_after_an_ended_document_begins_another(tmp_path):
    rows = [json.dumps({"text": TEXT[:50]}) for _ in range(40)]
    run = make_run(tmp_path / "a.jsonl", "\n".join(rows))
    options = {"max_tokens": 5, "temperature": 0}
    begun = TextGenerator(run, "some text", **options)
    next(begun)
    ended = begun.prompt_state._replace(token=run.data_spec.begin)
    texts = ["".join(TextGenerator(run, "A", prompt_state=s, **options)) for s in (None, ended)]
    assert texts[0] == texts[1]


def test_a_damaged_max_length_takes_no_memory(softmax_run, tmp_path):
    path, begun = tmp_path / "a.npz", TextGenerator(softmax_run, "A", max_tokens=0)
    save_prompt(path, softmax_run, begun.prompt_state._replace(max_length=2**31 - 1))
    with pytest.raises(ValueError, match="holds the state of another model or of other options"):
        load_prompt(path, softmax_run)


def test_the_state_of_a_prompt_has_one_size(run, tmp_path):
    sizes = []
    for count in (1, 50):
        generator = TextGenerator(run, "some text " * count, max_tokens=0)
        save_prompt(tmp_path / "a.npz", run, generator.prompt_state)
        sizes.append((tmp_path / "a.npz").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 16  # digits of counts


@given(
    st.lists(st.text("ab<>", max_size=4), max_size=8),
    st.lists(st.text("ab<>", min_size=1, max_size=3), max_size=3),
)
def test_text_ends_at_the_first_stop_text(pieces, stops):
    whole = "".join(pieces)
    ends = [place for stop in stops if (place := whole.find(stop)) >= 0]
    assert "".join(until(iter(pieces), stops)) == whole[: min(ends, default=len(whole))]


def test_unusable_prompts(run, softmax_run, tmp_path):
    with pytest.raises(OptionError, match="a prompt of at least one character"):
        TextGenerator(run, "")
    with pytest.raises(OptionError, match="because its cache grows"):
        TextGenerator(softmax_run, "A", max_tokens=None)
    with pytest.raises(OptionError, match="max_length of at least 11"):
        TextGenerator(softmax_run, "A", max_tokens=10, max_length=8)
    learned = make_run(tmp_path / "b.txt", position="learned")
    with pytest.raises(
        OptionError, match="at most 16 tokens together, because the run has learned"
    ):
        TextGenerator(learned, "A small text, of two", max_tokens=1)
    save_prompt(tmp_path / "p.npz", run, TextGenerator(run, "A", max_tokens=0).prompt_state)
    with pytest.raises(OptionError, match="was not saved by this run"):
        load_prompt(tmp_path / "p.npz", learned)
    with pytest.raises(OptionError, match="max_tokens"):
        TextGenerator(run, "A", max_tokens=-1)
    for stop in ("A", [""]):
        with pytest.raises(OptionError, match="expected stop as a list of texts"):
            TextGenerator(run, "A", stop=stop)
    assert generate_batch(run, []) == []


def test_the_command(run_dir, classify_run, tmp_path, capsys):
    args = ["generate", str(run_dir), "--max-tokens", "8", "--temperature", "0"]
    one = succeed(capsys, *args, "--prompt", "A small")
    assert one.endswith("\n")
    lines = succeed(capsys, *args, "--prompt", "A small", "of").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["prompt"] for row in rows] == ["A small", "of"]
    (tmp_path / "prompt.txt").write_text("A small")
    assert succeed(capsys, *args, "--prompt-file", str(tmp_path / "prompt.txt")) == one
    state = tmp_path / "prompt.npz"
    begin = ["generate", str(run_dir), "--max-tokens", "0", "--prompt", "A sm"]
    assert succeed(capsys, *begin, "--save-state", str(state)) == ""
    assert succeed(capsys, *args, "--state", str(state), "--prompt", "all") == one
    assert "task" in succeed(capsys, "state", str(state))
    refused = fail(capsys, *args, "--prompt", "A", "--prompt-file", "b.txt")
    assert "(--prompt, --prompt-file)" in refused
    refused = fail(capsys, *args, "--prompt", "A", "B", "--state", str(state))
    assert "need a single prompt, got" in refused
    refused = fail(capsys, "generate", str(classify_run), "--prompt", "A")
    assert f"'generate' needs a language model, but {classify_run} is a run of classify." in refused
    assert "a prompt of at least one character" in fail(capsys, *args)
    refused = fail(capsys, *args, "--prompt-file", str(tmp_path / "none.txt"))
    assert "none.txt: No such file or directory. (--prompt-file)" in one_line(refused)
    (tmp_path / "lines.txt").write_text("A small\ntext\n")
    lines = ["--input", str(tmp_path / "lines.txt"), "--state", str(tmp_path / "stream.npz")]
    succeed(capsys, "stream", str(run_dir), *lines)
    refused = fail(capsys, *args, "--state", str(tmp_path / "stream.npz"))
    assert "expected the state of a prompt, got the state of a stream" in one_line(refused)
