"""Options that no run can have are refused before anything is read."""

from __future__ import annotations

import json
import math

import pytest
from flax import nnx

from flax_linattn import data, models, storage, tasks
from flax_linattn.tasks import files
from flax_linattn.tasks.classify import ClassifyConfig, ClassifySpec
from flax_linattn.tasks.config_file import read_config, write_config
from flax_linattn.tasks.forecast import ForecastConfig, ForecastSpec
from flax_linattn.tasks.run import read_data_spec
from tests.contract.tolerances import assert_same_bits


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("learning_rate", math.nan, "learning_rate must be positive, got nan"),
        ("dropout_rate", 1.0, r"dropout_rate must be in \[0, 1\), got 1.0"),
        ("epochs", 0, "epochs must be at least 1, got 0"),
        ("batch_size", -1, "batch_size must be at least 1, got -1"),
    ],
)
def test_every_part_of_a_config_is_checked(option, value, message):
    """``tests/training`` and ``tests/models`` have all that each part refuses."""
    with pytest.raises(ValueError, match=message):
        ClassifyConfig.of(**{option: value})


def test_a_renamed_option_keeps_its_key():
    """Stored runs have the keys; errors and command lines have the names."""
    config = tasks.get_task("events").Config.of(event_type="kind")
    values = config.to_json()
    assert values["mark"] == "kind" and not values.keys() & {"event_type", "event_types_file"}
    assert type(config).from_json(values) == config
    assert config.differences(type(config)()) == {"event_type": ("kind", "mark")}


@pytest.mark.parametrize(
    ("option", "value", "maximum"),
    [
        ("batch_size", 2**20, 2**16),
        ("epochs", 10**12, 10**6),
        ("features", 10**9, 2**16),
        ("num_heads", 10**9, 2**16),
        ("hidden_features", 10**9, 2**19),
        ("num_layers", 10**9, 1000),
        ("runs", 10**9, 1024),
        ("context_length", 10**9, 2**20),
        ("horizon", 10**9, 2**20),
    ],
)
def test_absurd_sizes_in_a_file_are_refused(option, value, maximum, tmp_path):
    """The error names the file and the key, before data or memory are touched."""
    task, config = tasks.get_task("forecast"), ForecastConfig()
    write_config(tmp_path, task, config)
    assert read_config(tmp_path) == config
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), option: value}))
    expected = rf"config\.json does not .*: {option} must be at most {maximum}, got {value}"
    with pytest.raises(ValueError, match=expected):
        read_config(tmp_path)


def test_files_of_absurd_size_are_not_parsed(tmp_path, monkeypatch):
    write_config(tmp_path, tasks.get_task("forecast"), ForecastConfig())
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 100)
    with pytest.raises(ValueError, match=r"config\.json takes [\d,]+ bytes, at most 100 are read"):
        read_config(tmp_path)


def test_files_that_nobody_could_read_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_MAX_JSON_CONTAINERS", 1)
    with pytest.raises(ValueError, match=r"config\.json would be too large to load: .* 1 lists"):
        write_config(tmp_path, tasks.get_task("forecast"), ForecastConfig())
    assert not list(tmp_path.iterdir())


def test_a_data_spec_of_a_later_format_is_refused(tmp_path):
    (tmp_path / "data_spec.json").write_text('{"format": 3, "rows": []}')
    with pytest.raises(ValueError, match=r"data_spec\.json has the format 3, but this .* format 2"):
        read_data_spec(tmp_path, tasks.get_task("forecast"))


def test_a_model_by_hand_is_the_command_s():
    """The same parameters and options from the short constructors' defaults."""
    train, _ = data.japanese_vowels()
    standardizer = data.Standardizer.fit(train.series)
    data_spec = ClassifySpec(train.name, train.channels, train.classes, (29,), standardizer, {})
    command = tasks.get_task("classify").model(ClassifyConfig(), data_spec)
    hand = models.SequenceClassifier(12, 9, max_length=29, rngs=nnx.Rngs(0))
    assert_same_bits(nnx.state(hand), nnx.state(command))
    assert hand.dropout.rate == command.dropout.rate == 0.1
    rows = ForecastSpec("rows", ("a", "b"), (0, 1), None, (), standardizer, ((0, 1),) * 3, "")
    command = tasks.get_task("forecast").model(ForecastConfig(), rows)
    hand = models.Forecaster(2, 96, memory=96, max_length=96, rngs=nnx.Rngs(0))
    assert_same_bits(nnx.state(hand), nnx.state(command))
    encoder_decoder = ForecastConfig.of(model="encoder-decoder")
    command = tasks.get_task("forecast").model(encoder_decoder, rows)
    hand = models.EncoderDecoder(2, 96, label_length=48, rngs=nnx.Rngs(0))
    assert_same_bits(nnx.state(hand), nnx.state(command))
