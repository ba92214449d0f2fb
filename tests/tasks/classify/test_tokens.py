"""Long sequences: what is read and drawn, what is refused, simple methods, lengths, streams."""

import json
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import data, tasks, training
from flax_linattn.checks import OptionError
from flax_linattn.data.generators.listops import LISTOPS_TOKENS, evaluate_listops
from flax_linattn.tasks.classify import SequenceConfig
from flax_linattn.tasks.classify.baselines import (
    MAX_ORDER,
    first_token,
    hash_ngrams,
    iterate_sequences,
    naive_bayes,
)
from flax_linattn.tasks.classify.metrics import make_label_loss
from flax_linattn.tasks.classify.tokens.data import ALPHABETS
from flax_linattn.tasks.classify.tokens.options import PRESETS
from tests.data.images.samples import write_image_folder, write_texts
from tests.tasks.commands import SIZES

TASK = tasks.get_task("sequence")
DRAWN = {
    "min_length": 8,
    "max_length": 12,
    "epoch_size": 32,
    "validation_size": 16,
    "test_size": 16,
}

pytestmark = pytest.mark.usefixtures("no_figures")


def small(**options):
    drawn = {} if "data" in options else DRAWN
    return SequenceConfig.of(**(SIZES | {"warmup": 0.0, "epochs": 1} | drawn | options))


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "reviews"
    write_texts(folder)
    return folder


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    write_image_folder(folder, ("across", "down"), 8, 4)
    return folder


# -- data ----------------------------------------------------------------------------------


def test_drawn_expressions_have_their_values():
    splits = TASK.load(small()).splits(small())
    for part in splits:
        batch = part.batch(0)
        for tokens, mask, label in zip(
            *(batch[n] for n in ("tokens", "mask", "labels")), strict=True
        ):
            assert 8 <= mask.sum() <= 12
            assert evaluate_listops(tokens[mask]) in range(10)
            if LISTOPS_TOKENS.index("[MED") not in tokens:  # whose median is another
                assert evaluate_listops(tokens[mask]) == label


def test_lengths_of_batches_are_few_and_go_over_devices():
    config = small(max_length=40)
    train = TASK.load(config).splits(config, sequence_shards=8).train
    lengths = {train.batch(step)["tokens"].shape[1] for step in range(40)}
    assert len(lengths) <= 5 and all(length % 8 == 0 for length in lengths)
    many = config.replace(runs=2)
    train = TASK.load(many).splits(many.run_config(1)).train
    assert {train.batch(step)["tokens"].shape[1] for step in range(20)} == {40}


def splits_of(source, config):
    return source.splits(config, source.describe(config))


def test_bytes_of_texts(texts):
    config = small(data=str(texts), max_length=10)
    source = TASK.load(config)
    assert source.alphabet.name == "bytes" and source.max_length == 10
    batch = splits_of(source, config).test.batch(0)
    row = batch["tokens"][0][batch["mask"][0]]
    first = sorted((texts / "test" / source.classes[0]).iterdir())[0].read_bytes()
    assert bytes(row.astype(np.uint8).tolist()) == first[:10]
    as_python = config.replace(as_python=True, padding="symbol")
    batch = splits_of(TASK.load(as_python), as_python).test.batch(0)
    assert batch["mask"].all()
    assert bytes(batch["tokens"][0].astype(np.uint8).tolist()) == repr(first).encode()[:10]


def test_packed_texts_are_those_that_are_padded(texts):
    """The loss is that of the texts one by one."""
    config = small(data=str(texts), max_length=40, padding="packed", pooling="mean", batch_size=4)
    source = TASK.load(config)
    packed = splits_of(source, config).train
    plain = splits_of(source, config.replace(padding="masked", crop="prefix")).train
    model = TASK.model(config, TASK.describe(source, config))
    loss, expected = (
        training.evaluate(model, make_label_loss(TASK.compute_logits), batches)["loss"]
        for batches in (packed, plain)
    )
    assert loss == pytest.approx(expected, rel=1e-5)
    run = tasks.Run(TASK, config, TASK.describe(source, config), None, source)
    assert TASK.test_baselines(run, TASK.test_batches(run, None))["naive_bayes_learned_from"] > 0


def test_pixels_of_images(pictures):
    config = small(data=str(pictures))
    source = TASK.load(config)
    assert source.alphabet.name == "gray" and source.max_length == 16
    batch = splits_of(source, config).test.batch(0)
    assert batch["tokens"].dtype == np.uint8
    np.testing.assert_array_equal(batch["tokens"][0], source.test.pixels[0].ravel())
    with pytest.raises(OptionError, match="max_length has no effect on images"):
        TASK.load(small(data=str(pictures), max_length=9))


def test_an_archive_alone_in_a_folder_is_read(texts, tmp_path):
    """As ``data fetch`` leaves it."""
    import tarfile

    folder = tmp_path / "fetched"
    folder.mkdir()
    with tarfile.open(folder / "reviews.tar.gz", "w:gz") as archive:
        archive.add(texts, "reviews")
    plain, packed = (small(data=str(path)) for path in (texts, folder))
    assert TASK.load(plain).checksum(plain) == TASK.load(packed).checksum(packed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "listop"}, "did you mean 'listops'"),
        ({"data": "imdb"}, "fetch them first (flax-linattn data fetch IMDB)"),
        ({"data": "missing/folder"}, "the data folder or archive missing/folder does not exist"),
    ],
)
def test_data_that_are_not_there(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        TASK.load(small(**options))
    assert message in str(raised.value)


# -- alphabets -----------------------------------------------------------------------------


def test_lines_are_read_as_the_data_spell_them():
    assert list(ALPHABETS["bytes"].parse(["hé", "", "a", "b"])) == [
        104, 195, 169, None, 97, 10, 98,
    ]  # fmt: skip
    assert list(ALPHABETS["gray"].parse(["0 255, 7"])) == [0, 255, 7]
    with pytest.raises(ValueError, match="expected gray values, integers from 0 to 255"):
        list(ALPHABETS["gray"].parse(["256"]))
    with pytest.raises(ValueError, match=r"expected digits, \[MIN"):
        list(ALPHABETS["listops"].parse(["[MAXX 1 ]"]))


# -- baselines ----------------------------------------------------------------------------


def test_naive_bayes_as_computed_with_tables_of_words():
    """By the runs themselves, in a dictionary, instead of by their places in a table."""
    rng = np.random.default_rng(0)
    some = [(rng.integers(0, 4, rng.integers(1, 9)), int(rng.integers(3))) for _ in range(60)]
    fitted, new = some[:40], [tokens for tokens, _ in some[40:]]

    def words(tokens):
        text = tokens.tolist()
        orders = range(1, MAX_ORDER + 1)
        return {tuple(text[i : i + n]) for n in orders for i in range(len(text) - n + 1)}

    counts = [Counter() for _ in range(3)]
    for tokens, label in fitted:
        counts[label].update(words(tokens))
    labels = Counter(label for _, label in fitted)
    size = 2**20
    expected = []
    for tokens in new:
        scores = [
            math.log(labels[c])
            + sum(
                math.log((1 + counts[c][word]) / (size + sum(counts[c].values())))
                for word in words(tokens)
            )
            for c in range(3)
        ]
        expected.append(int(np.argmax(scores)))
    found = naive_bayes(fitted, new, 3)
    assert found.labels.tolist() == expected and found.num_fitted == 40


def test_ngrams_do_not_collide_where_there_are_few():
    tokens = np.arange(300) % 17
    assert len(hash_ngrams(tokens)) == 17 * MAX_ORDER
    assert len(hash_ngrams(tokens[:0])) == 0


def test_the_first_token_tells_a_class():
    fitted = [(np.array([2, 1]), 1), (np.array([2]), 1), (np.array([2]), 0)]
    found = first_token(fitted, [np.array([2, 0]), np.array([0])], 3, 2)
    assert found.labels.tolist() == [1, 0] and found.num_fitted == 3


def test_examples_leave_out_padding_and_filler():
    tokens = np.array([[1, 2, 0]])
    one = data.Batches(
        {"tokens": tokens, "mask": tokens > 0, "labels": np.array([4])}, 2, seed=None
    )
    ((tokens, label),) = iterate_sequences(one)
    assert tokens.tolist() == [1, 2] and label == 4


# -- loss and recipe -----------------------------------------------------------------------


def test_the_loss_smooths_in_training_only():
    logits = jnp.array([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
    batch = {
        "labels": jnp.array([0, 1]),
        "weight": jnp.array([1.0, 0.0]),
    }
    loss_fn = make_label_loss(lambda model, batch, key: logits, 0.1)
    logs = np.log(np.exp([2.0, 0.0, -1.0]) / np.exp([2.0, 0.0, -1.0]).sum())
    assert loss_fn(None, batch, None)[0] == pytest.approx(-logs[0], rel=1e-6)
    target = 0.9 * np.array([1.0, 0.0, 0.0]) + 0.1 / 3
    loss, metrics = loss_fn(None, batch, jax.random.key(0))
    assert loss == pytest.approx(-(target * logs).sum(), rel=1e-6)
    assert [float(x) for x in metrics["accuracy"]] == [1.0, 1.0]
    assert make_label_loss(make_label_loss) is make_label_loss(make_label_loss)


PARAMETERS = {
    # Kernels and biases of the embedding; of each layer q, k, v, out, two of the feed-forward
    # layer, two norms, two LayerScales, a temperature a head; the last norm, class token and head.
    "taylorshift-listops": 18 * 512
    + 4 * (4 * (512 * 512 + 512) + 2 * 512 * 1024 + 1024 + 512 + 4 * 512 + 2 * 512 + 8)
    + 2 * 512 + 512 + 5130,
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_presets_make_the_published_models(name):
    config = PRESETS[name](SequenceConfig())
    assert SequenceConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    if name in PARAMETERS:
        data_spec = TASK.DataSpec("listops", "listops", tuple("0123456789"), 2000, "")
        model = nnx.eval_shape(lambda: TASK.model(config, data_spec))
        sizes = [p.size for p in jax.tree.leaves(nnx.state(model, nnx.Param))]
        assert sum(sizes) == PARAMETERS[name]


# -- runs ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_steps")
def test_accuracy_at_further_lengths_and_on_official_files(tmp_path):
    config = small(test_lengths=(12, 24), batch_size=8)
    values = tasks.train("sequence", config, training.Session(tmp_path / "run", progress=False))
    assert [(row["length"], row["trained_on"]) for row in values["lengths"]] == [
        (12, True), (24, False),
    ]  # fmt: skip
    path = tmp_path / "two.tsv"
    path.write_text("9\t( ( ( [MAX 2 ) 9 ) ] )\n5\t5\n")
    report = tasks.evaluate_run(tmp_path / "run", path)
    assert report["num_test"] == 2
    path.write_text("8\t[MAX 2 9 ]\n")
    with pytest.raises(ValueError, match=r"two\.tsv:1: expected the value 9, got '8'"):
        tasks.evaluate_run(tmp_path / "run", path)
