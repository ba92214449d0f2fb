"""Models on disk: what is loaded is what was saved, bit for bit, or a message says what to do."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_linattn import checkpoint, models, nn, ops, storage
from flax_linattn.models import saved
from flax_linattn.models.description import KINDS, build_abstract, describe, make
from tests.contract.tolerances import assert_same_bits
from tests.nn.cases import moved, normal

TINY = models.Layers(8, 2, 2, 12)
LATENT_LAYERS = models.Layers(8, 1, 2, 12, "softmax")
ORDER_4 = ops.get_mechanism("elementwise_series", order=4)
RNGS = {"quiet": {"params": 0}, "with keys": {"params": 0, "dropout": 1}}


def tokens(**options):
    return models.TokenEmbedding(11, 8, rngs=nnx.Rngs(0), **options)


def backbone(embedding=3, layers=TINY, **options):
    return models.Backbone(embedding, layers, **options, rngs=nnx.Rngs(0))


def keyed(kind, *args, **options):
    return kind(*args, **options, rngs=nnx.Rngs(params=0, dropout=1))


MODELS = {
    "backbone": backbone,
    "backbone of a hybrid stack, by name and by value": lambda: backbone(
        layers=dataclasses.replace(TINY, mechanism=("aaren:chunk_size=4", ORDER_4), norm="pre")
    ),
    "backbone with options": lambda: backbone(
        kernel_size=5, position="learned", max_length=9, embedding_padding="circular",
        is_causal=False, mechanism="linformer",
    ),
    "backbone of half-precision parameters": lambda: backbone(
        param_dtype=jnp.bfloat16, dtype="bfloat16"
    ),
    "backbone without a final norm": lambda: backbone(final_norm=False),
    "backbone of tokens": lambda: backbone(tokens(position="learned", max_length=7)),
    "classifier": lambda: models.SequenceClassifier(3, 4, layers=TINY, rngs=nnx.Rngs(0)),
    "classifier with keys": lambda: keyed(
        models.SequenceClassifier, 3, 4, layers=TINY, pooling="flatten", max_length=6,
        attends_to_padding=True, mechanism=ORDER_4, activation="relu",
    ),
    "classifier of tokens": lambda: models.SequenceClassifier(
        backbone(tokens()), 4, pooling="last", max_length=3, rngs=nnx.Rngs(1)
    ),
    "decision transformer": lambda: models.DecisionTransformer(
        np.int64(3), 2, max_length=np.int64(9), layers=TINY, rngs=nnx.Rngs(0)
    ),
    "decision transformer with options": lambda: keyed(
        models.DecisionTransformer, 3, 1, position="none", max_length=None, layers=TINY,
        mechanism="taylorshift", norm="pre", dropout_rate=0.1, param_dtype=jnp.bfloat16,
    ),
    "decision transformer of discrete actions": lambda: models.DecisionTransformer(
        3, num_actions=np.int64(4), layers=TINY, rngs=nnx.Rngs(0)
    ),
    "backbone of features": lambda: backbone(models.FeatureEmbedding(8)),
    "event forecaster": lambda: models.EventForecaster(
        np.int64(3), periods=(24, np.float32(168)), spread=np.float64(1.5), num_components=2,
        layers=TINY, rngs=nnx.Rngs(0),
    ),
    "event forecaster with options": lambda: keyed(
        models.EventForecaster, 2, kernel_size=1, position="learned", max_length=7, layers=TINY,
        mechanism="taylorshift", param_dtype=jnp.bfloat16, dtype="bfloat16",
    ),
    "event embedding": lambda: models.EventEmbedding(3, 8, position="sinusoidal", rngs=nnx.Rngs(0)),
    "forecaster": lambda: models.Forecaster(
        3, np.int64(4), num_covariates=2, targets=(2, 0), memory=np.float32(9.5), layers=TINY,
        rngs=nnx.Rngs(0),
    ),
    "forecaster without moments": lambda: keyed(
        models.Forecaster, 3, 4, normalize=False, layers=TINY, mechanism="taylorshift", rotary=True,
        short_conv=2,
    ),
    "language model": lambda: models.LanguageModel(11, layers=TINY, rngs=nnx.Rngs(0)),
    "language model with a head": lambda: models.LanguageModel(
        11, tied=False, position="none", layers=TINY, remat="dots", rngs=nnx.Rngs(0)
    ),
    "encoder-decoder": lambda: models.EncoderDecoder(
        3, 4, label_length=2, num_covariates=1, targets=[1], num_decoder_layers=2, layers=TINY,
        embedding_padding="causal", is_causal=False, normalize=False, rngs=nnx.Rngs(0),
    ),
    "backbone with a class token": lambda: backbone(
        models.LinearTokenEmbedding(11, 8, position="learned", max_length=7, rngs=nnx.Rngs(0)),
        dataclasses.replace(TINY, drop_path_rate=0.1, layer_scale=0.01),
        is_causal=False, class_token=True, max_length=7, mechanism="linformer",
    ),
    "classifier by a class token": lambda: keyed(
        models.SequenceClassifier, 3, 4, layers=TINY, pooling="class", head_activation="none",
        mechanism="taylorshift", drop_path_rate=0.1,
    ),
    "classifier of convolved tokens": lambda: models.SequenceClassifier(
        backbone(models.ConvTokenEmbedding(11, 8, padding="causal", rngs=nnx.Rngs(0))), 4,
        rngs=nnx.Rngs(1),
    ),
    "image classifier": lambda: models.ImageClassifier(
        (8, np.int64(12)), 4, 5, layers=TINY, layer_scale=1e-4, rngs=nnx.Rngs(0)
    ),
    "image classifier with options": lambda: keyed(
        models.ImageClassifier, (8, 8), 4, 5, in_channels=1, embedding="conv", position="none",
        pooling="mean", is_causal=True, layers=TINY, drop_path_rate=0.1, dtype="bfloat16",
        param_dtype=jnp.bfloat16,
    ),
    "MiniRocket classifier": lambda: models.MiniRocketClassifier(
        np.int64(3), 4, 30, num_features=np.int64(200), num_prefixes=np.int64(2), rngs=nnx.Rngs(0)
    ),
    "MiniRocket classifier with attention": lambda: models.MiniRocketClassifier(
        3, 4, 5, num_features=84, max_dilations=1, rngs=nnx.Rngs(0),
        attention=models.SequenceClassifier(3, 4, layers=TINY, rngs=nnx.Rngs(params=0, dropout=1)),
    ),
    "MiniRocket features": lambda: models.MiniRocketFeatures(
        np.int64(3), 30, num_features=200, max_dilations=np.int64(2), rngs=nnx.Rngs(0)
    ),
    "patch forecaster": lambda: models.PatchForecaster(
        np.int64(3), np.int64(4), patch_length=np.int64(2), layers=TINY, rngs=nnx.Rngs(0)
    ),
    "patch forecaster with options": lambda: keyed(
        models.PatchForecaster, 3, 4, context=0, num_covariates=2, targets=[1, 0],
        memory=np.float32(9.5), position="none", channel_mechanism="softmax", max_length=9,
        layers=TINY, mechanism="aft", param_dtype=jnp.bfloat16,
    ),
    "perceiver": lambda: models.PerceiverReader(
        3, 5, num_latents=np.int64(4), reads_by="forgetting_aaren", layers=LATENT_LAYERS,
        rngs=nnx.Rngs(0),
    ),
    "linear token embedding": lambda: models.LinearTokenEmbedding(11, 8, rngs=nnx.Rngs(0)),
    "convolution of tokens": lambda: models.ConvTokenEmbedding(
        11, 8, kernel_size=5, position="learned", max_length=7, dtype=jnp.bfloat16,
        param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0),
    ),
    "observation embedding": lambda: models.ObservationEmbedding(
        3, 8, num_covariates=2, kernel_size=1, rngs=nnx.Rngs(0)
    ),
    "token embedding": tokens,
    "backbone of one-hot tokens": lambda: backbone(models.OneHotEmbedding(8)),
    "window model": lambda: models.WindowModel(
        4, np.int64(3), mechanism="softmax:scale=1", rngs=nnx.Rngs(0)
    ),
    "window model with keys": lambda: keyed(
        models.WindowModel, 6, 5, readout="last", mechanism="aft", dropout_rate=0.1,
        param_dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def test_every_class_is_there():
    kinds = {type(nnx.eval_shape(model)).__name__ for model in MODELS.values()}
    # Which are nothing to save by themselves.
    assert kinds | {"FeatureEmbedding", "OneHotEmbedding"} == set(KINDS)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    model = moved(MODELS[name]())
    path = tmp_path / "model"
    models.save_model(path, model)
    loaded = models.load_model(path)
    assert type(loaded) is type(model)
    assert loaded.options.keys() == model.options.keys()
    assert_same_bits(
        checkpoint.copy_to_host(nnx.state(loaded)), checkpoint.copy_to_host(nnx.state(model))
    )
    described = json.dumps(describe(model))
    assert json.dumps(describe(loaded)) == described
    assert json.dumps(describe(make(json.loads(described)))) == described
    # Saved again it takes the place of the first, and nothing else is left.
    models.save_model(path, loaded)
    assert len(list(path.iterdir())) == 2


def test_a_loaded_model_draws_the_same_keys(tmp_path):
    """What it computes without keys, the contract compares for all heads."""
    model = moved(MODELS["classifier with keys"]())
    models.save_model(tmp_path, model)
    loaded = models.load_model(tmp_path)
    run, x = nnx.jit(lambda model, x: model(x)), normal(0, 2, 5, 3)
    model.train()
    loaded.train()
    assert_same_bits(run(loaded, x), run(model, x))


@settings(max_examples=8)  # each traces its models, which takes a second
@given(
    st.builds(
        models.Layers,
        features=st.sampled_from([4, 8]),
        num_layers=st.integers(1, 2),
        num_heads=st.sampled_from([1, 2]),
        hidden_features=st.sampled_from([None, 5]),
        mechanism=st.sampled_from(
            ["aaren", "softmax", "taylorshift:switch=memory", ORDER_4, "performer"]
        ),
        norm=st.sampled_from(["pre", "post"]),
        activation=st.sampled_from(["gelu", "relu", "tanh"]),
        dropout_rate=st.sampled_from([0.0, 0.1]),
        dtype=st.sampled_from(["float32", "bfloat16"]),
        remat=st.sampled_from(["none", "dots", "blocks"]),
        drop_path_rate=st.sampled_from([0.0, 0.1]),
        layer_scale=st.sampled_from([None, 1e-4]),
        normalize_qk=st.sampled_from([None, "layer", "rms", "l2"]),
        output_norm=st.sampled_from([None, "rms"]),
        output_gate=st.sampled_from([None, "silu"]),
    ),
    st.sampled_from(["last", "mean", "flatten", "class"]),
    st.sampled_from(["sinusoidal", "learned", "none"]),
    st.sampled_from(list(RNGS)),
)
def test_any_options_come_back(layers, pooling, position, streams):
    def build():
        return models.SequenceClassifier(
            3, 4, layers=layers, pooling=pooling, max_length=5, position=position,
            rngs=nnx.Rngs(**RNGS[streams]),
        )  # fmt: skip

    text = json.dumps(describe(nnx.eval_shape(build)))
    got, want = (
        jax.eval_shape(lambda build=build: nnx.state(build()))
        for build in (lambda: make(json.loads(text)), build)
    )
    assert checkpoint.named_leaves(got) == checkpoint.named_leaves(want)
    again = nnx.eval_shape(lambda: make(json.loads(text)))
    assert again.backbone.layers == layers
    assert json.dumps(describe(again)) == text


def test_keys_of_options_are_stable():
    """Arguments that were renamed have the keys of earlier files."""
    series = models.ObservationEmbedding(3, 8, num_covariates=2, rngs=nnx.Rngs(0))
    events = models.EventEmbedding(5, 8, rngs=nnx.Rngs(0))
    window = models.EncoderDecoder(3, 4, num_covariates=1, label_length=2, features=8,
                                   num_heads=2, rngs=nnx.Rngs(0))  # fmt: skip
    for model, count in ((series, 2), (events, 5), (window, 1)):
        ((_, options),) = describe(model).items()
        assert options["num_marks"] == count
        assert make(describe(model)).options == model.options


def test_files_that_are_older_than_an_option_have_its_default(small, tmp_path):
    """As those of 0.2, which knew no class token, drop path, layer scale or activation."""
    path = shutil.copytree(small, tmp_path / "model")
    description = checkpoint.read_json(path / saved.FILE)["description"]
    options = description["SequenceClassifier"]
    backbone_call = options["backbone"]["Backbone"]
    assert options.pop("head_activation") == "gelu"
    assert backbone_call.pop("class_token") is False
    assert backbone_call["layers"]["Layers"].pop("drop_path_rate") == 0
    assert backbone_call["layers"]["Layers"].pop("layer_scale") is None
    rewritten(path, description=description)
    older, model = models.load_model(path), models.load_model(small)
    assert nnx.graphdef(older) == nnx.graphdef(model)
    assert_same_bits(nnx.state(older), nnx.state(model))


@pytest.mark.slow
def test_a_fresh_process_needs_the_path_alone(tmp_path):
    model = moved(MODELS["classifier with keys"]())
    models.save_model(tmp_path / "model", model)
    x = normal(0, 2, 5, 3)
    np.savez(tmp_path / "x.npz", x=x)
    code = (
        "import sys, numpy as np\n"
        "from flax import nnx\n"
        "from flax_linattn import models\n"
        "folder = sys.argv[1]\n"
        "model = models.load_model(folder + '/model')\n"
        "run = nnx.jit(lambda model, x: model(x))\n"
        "np.save(folder + '/y.npy', run(model, np.load(folder + '/x.npz')['x']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    y = nnx.jit(lambda model, x: model(x))(model, x)
    assert_same_bits(np.load(tmp_path / "y.npy"), np.asarray(y))


class Own(nnx.Module):
    def __init__(self, features=4, *, rngs):
        self.attention = nn.Attention(features, 2, mechanism="taylorshift", rngs=rngs)
        self.norm = nnx.BatchNorm(features, rngs=rngs)


def own(seed=0, features=4):
    return Own(features, rngs=nnx.Rngs(seed))


def test_a_module_of_ones_own_is_loaded_like_another(tmp_path):
    model = own(0)
    models.save_model(tmp_path, model)
    other = own(1)
    before = checkpoint.copy_to_host(nnx.state(other))
    loaded = models.load_model(tmp_path, like=other)
    assert_same_bits(nnx.state(loaded), nnx.state(model))
    assert_same_bits(checkpoint.copy_to_host(nnx.state(other)), before)  # it stays as it is
    with pytest.raises(ValueError, match=r"Own is not a class of .*load_model\(path, like=model\)"):
        models.load_model(tmp_path)
    with pytest.raises(ValueError, match=r"attention.key_projection.bias: saved float32\[4\]"):
        models.load_model(tmp_path, like=own(features=8))


@pytest.mark.parametrize("what", ["embedding", "mechanism", "head"])
def test_parts_that_are_not_of_the_package(what, tmp_path):
    class Embedding(models.TokenEmbedding):
        pass

    class Aaren(ops.Aaren):
        name = "mine"

    def build():
        if what == "embedding":
            return backbone(Embedding(11, 8, rngs=nnx.Rngs(0)))
        if what == "mechanism":
            return backbone(mechanism=Aaren())
        model = models.SequenceClassifier(3, 4, layers=TINY, rngs=nnx.Rngs(0))
        model.kernel = nnx.Param(jnp.ones((1, 8, 7)))
        return model

    reason = {
        "embedding": "Embedding is not a class",
        "mechanism": "the mechanism 'mine' is not registered",
        "head": "its modules differ from the modules that SequenceClassifier makes",
    }
    models.save_model(tmp_path, build())
    with pytest.raises(ValueError, match=reason[what]):
        models.load_model(tmp_path)
    assert_same_bits(nnx.state(models.load_model(tmp_path, like=build())), nnx.state(build()))


def test_on_a_mesh_it_lies_as_the_model_given(tmp_path):
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "model"))
    model = nnx.Linear(4, 6, rngs=nnx.Rngs(0))
    model.kernel.set_value(jax.device_put(model.kernel[...], spread))
    models.save_model(tmp_path, model)
    loaded = models.load_model(tmp_path, like=model)
    assert loaded.kernel[...].sharding == spread
    assert_same_bits(nnx.state(loaded), nnx.state(model))


def test_a_model_without_variables_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="with variables to save, got a OneHotEmbedding without any"
    ):
        models.save_model(tmp_path / "model", models.OneHotEmbedding(3))
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    models.save_model(path, models.SequenceClassifier(3, 4, layers=TINY, rngs=nnx.Rngs(0)))
    return path


def cut(path):
    file = path / saved.FILE
    file.write_bytes(file.read_bytes()[:100])


def change(path):
    file = path / saved.FILE
    file.write_text(file.read_text().replace('"num_classes": 4', '"num_classes": 5'))


def remove_arrays(path):
    shutil.rmtree(next(path.glob("arrays-*")))


def flip(path):
    file = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def foreign_json(path):
    (path / saved.FILE).write_text('{"hello": 1}')


@pytest.mark.parametrize("damage", [cut, change, remove_arrays, flip, foreign_json])
def test_damage_is_seen(damage, small, tmp_path):
    path = shutil.copytree(small, tmp_path / "model")
    damage(path)
    with pytest.raises(ValueError, match=r"is damaged.*Restore it from a copy, or save the model"):
        models.load_model(path)


def rewritten(path, **changes):
    """Whole, but of another version."""
    values = checkpoint.read_json(path / saved.FILE) | changes
    checkpoint.write_json(path / saved.FILE, values)


def test_files_of_later_versions(small, tmp_path):
    path = shutil.copytree(small, tmp_path / "model")
    description = checkpoint.read_json(path / saved.FILE)["description"]
    description["SequenceClassifier"]["depth"] = 3
    rewritten(path, description=description)
    with pytest.raises(ValueError, match=r"cannot make the SequenceClassifier .*depth.*that saved"):
        models.load_model(path)
    rewritten(path, description={"Oracle": {}})
    with pytest.raises(ValueError, match="unknown model class 'Oracle'"):
        models.load_model(path)
    rewritten(path, format=2)
    with pytest.raises(ValueError, match=r"later version \(format 2, this one reads 1\)"):
        models.load_model(path)
    checkpoint.write_json(path / saved.FILE, {"hello": 1})
    with pytest.raises(ValueError, match=r"model.json was not written by save_model\. Restore it"):
        models.load_model(path)


def test_folders_of_something_else(small, tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        models.load_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no model saved by save_model.*training.load_best"):
        models.load_model(tmp_path)
    model = models.load_model(small)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds other files, such as 'notes.txt'"):
        models.save_model(tmp_path, model)
    with pytest.raises(ValueError, match="expected a folder to save the model in, got the file"):
        models.save_model(tmp_path / "notes.txt", model)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("moment", ["write_arrays", "write_json", "sync_folder"])
def test_a_save_that_dies_leaves_the_model_before(moment, small, tmp_path, monkeypatch):
    path = shutil.copytree(small, tmp_path / "model")
    want = nnx.state(models.load_model(path))

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(storage if moment == "sync_folder" else checkpoint, moment, die)
        models.save_model(path, models.SequenceClassifier(3, 9, layers=TINY, rngs=nnx.Rngs(5)))
    assert_same_bits(nnx.state(models.load_model(path)), want)
    new = models.SequenceClassifier(3, 9, layers=TINY, rngs=nnx.Rngs(5))
    models.save_model(path, new)
    assert_same_bits(nnx.state(models.load_model(path)), nnx.state(new))
    assert len(list(path.iterdir())) == 2  # what the other left is gone


@pytest.mark.parametrize(
    "changes",
    [
        {"description": 5},
        {"description": {}},
        {"description": {"SequenceClassifier": 5}},
        {"description": {"SequenceClassifier": {}}},
        {"description": {"SequenceClassifier": {"has_dropout_keys": True}}},
        {"description": {"SequenceClassifier": {"backbone": {"dtype": "nothing"}}}},
        {"description": {"SequenceClassifier": {"backbone": {"Layers": 5}}}},
        {"description": {"SequenceClassifier": {"backbone": {"mechanism": {"kind": []}}}}},
        {"description": {"SequenceClassifier": {"backbone": {"dtype": "bool"}}}},
        {"folder": 5},
        {"folder": "../../etc"},
        {"manifest": []},
        {"manifest": {"arrays": {"model": {"a": "float32"}}, "files": {}}},
        {"manifest": {"arrays": {}, "files": {}}},
        {"class": None},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_file_by_hand_raises_nothing_foreign(changes, small, tmp_path):
    path = shutil.copytree(small, tmp_path / "model")
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        models.load_model(path)


@pytest.mark.parametrize("folder", ["..", ".", "", "arrays-0123"])
def test_arrays_are_read_from_a_folder_of_save_model_alone(folder, small, tmp_path):
    path = shutil.copytree(small, tmp_path / "model")
    arrays = next(path.glob("arrays-*")) / "arrays"
    shutil.copytree(arrays, path / folder / "arrays", dirs_exist_ok=True)
    rewritten(path, folder=folder)
    with pytest.raises(ValueError, match=r"model.json was not written by save_model"):
        models.load_model(path)


def test_a_model_is_compared_before_it_takes_memory(small, tmp_path, monkeypatch):
    """A description of 128 GB, then the same of the arrays."""
    path = shutil.copytree(small, tmp_path / "model")
    values = checkpoint.read_json(path / saved.FILE)
    values["description"]["SequenceClassifier"]["num_classes"] = 4 * 10**9
    rewritten(path, description=values["description"])
    with pytest.raises(
        ValueError, match=r"kernel: saved float32\[1, 8, 4\], requested float32\[1, 8"
    ):
        models.load_model(path)
    shapes = {"kernel": f"float32[1, 8, {4 * 10**9}]", "bias": f"float32[{4 * 10**9}]"}
    values["manifest"]["arrays"]["model"] |= shapes

    def zeros(shape, dtype):
        raise MemoryError(f"Unable to allocate {shape}")

    rewritten(path, manifest=values["manifest"])
    monkeypatch.setattr(np, "zeros", zeros)
    with pytest.raises(ValueError, match="do not fit in memory: Unable to allocate"):
        models.load_model(path)


def test_a_model_to_compare_takes_no_memory(small, monkeypatch):
    def read_arrays(folder, item, manifest, state):
        leaves = jax.tree.leaves(state)
        assert leaves and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "read_arrays", read_arrays)
    with pytest.raises(KeyboardInterrupt):
        models.load_model(small)


def test_a_model_made_of_shapes_is_the_same(small):
    described = checkpoint.read_json(small / saved.FILE)["description"]
    assert nnx.graphdef(build_abstract(described)) == nnx.graphdef(make(described))


def test_a_description_that_is_too_deep(small, tmp_path):
    path = shutil.copytree(small, tmp_path / "model")
    deep: object = 1
    for _ in range(300):
        deep = [{"TokenEmbedding": {"has_dropout_keys": True, "num_tokens": deep}}]
    rewritten(path, description={"SequenceClassifier": {"has_dropout_keys": True, "a": deep}})
    with pytest.raises(ValueError, match="cannot make the SequenceClassifier"):
        models.load_model(path)
