"""Table 4 and the memory of training: the algorithm as coded, watched trainings, verdicts."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.intervals import Interval
from experiments.options import task_config
from experiments.sequences import data_sets, figure4, memory, rules, table3, table4
from experiments.sequences.as_coded import FORMS, STAGES, AsCoded, half, record_sizes
from experiments.sequences.monitoring import train_monitored
from experiments.verdicts import (
    FAILS,
    HOLDS,
    IN_PART,
    ONE_SEED,
    OPEN,
    SMALLER,
    TOO_FEW,
    NotMeasuredError,
    Word,
    opposite,
)
from flax_linattn import ops
from flax_linattn.tasks.classify import SequenceTask


def arrays(scale=1.0):
    rng = np.random.default_rng(0)
    return [scale * rng.normal(size=(2, 9, 3, 4)) for _ in range(3)]


def equation(q, k, v, mask, stage, tau):
    """Equation 1 of every query in NumPy, with the steps of section 3.3 that a stage has."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    dim = q.shape[-1]
    if stage == "plain":
        q = q * dim**0.25
    else:
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        q = q * tau[:, None]
    y = np.zeros_like(q)
    for b, t, h in np.ndindex(*q.shape[:3]):
        x = k[b, mask[b], h] @ q[b, t, h]
        weight = x**2 / 2 + x + 1
        y[b, t, h] = weight @ v[b, mask[b], h] / weight.sum()
        if stage == "full":
            y[b, t, h] *= math.sqrt(mask[b].sum() / dim)
    return y


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stage", STAGES)
def test_the_algorithm_as_coded_is_the_papers_equation_where_nothing_is_rounded(stage, form):
    q, k, v = arrays()
    tau = np.array([0.5, 1.0, 2.0])
    mask = np.arange(9) < np.array([[9], [6]])
    exact = AsCoded(stage=stage, is_half=False)
    with jax.enable_x64(True):
        given = {} if stage == "plain" else {"temperature": jnp.asarray(tau)}
        masks = {"mask": jnp.asarray(mask), "query_mask": jnp.ones((2, 9), bool)}
        tokens = [jnp.asarray(x) for x in (q, k, v)]
        expected = equation(q, k, v, mask, stage, tau)
        for y in (
            exact.attend(*tokens, form=form, **masks, **given),
            exact.reference(*tokens, **masks, **given),
        ):
            np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-12)


def test_half_precision_overflows_forward_and_backward():
    assert half(jnp.array([65504.0, -70000.0])).tolist() == [65504.0, -math.inf]
    values, pull = jax.vjp(half, jnp.array([1.0, 2049.0]))
    assert values.tolist() == np.array([1.0, 2049.0], np.float16).tolist()
    assert pull(jnp.array([70000.0, 0.1], jnp.float32))[0].tolist() == [math.inf, np.float16(0.1)]


def test_the_plain_efficient_form_overflows_where_the_others_do_not():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in arrays(40.0))
    finite = {
        (stage, form): bool(jnp.isfinite(AsCoded(stage=stage).attend(q, k, v, form=form)).all())
        for stage in STAGES
        for form in FORMS
    }
    assert not finite.pop(("plain", "efficient"))
    assert all(finite.values())


def test_sizes_are_the_largest_exact_products():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in arrays(40.0))
    with record_sizes() as noted:
        AsCoded().attend(q, k, v, form="efficient")
        AsCoded().attend(q, k, v, form="direct")
    of_efficient, of_direct = noted
    q, k, v = (np.asarray(x, np.float64) for x in (q * 4**0.25, k, v))
    ones = np.concatenate([np.ones((2, 9, 3, 1)), v], axis=-1)
    x = np.einsum("bthk,bshk->bhts", q, k)
    expected = {
        "A_mod": np.einsum("bshk,bshl,bshv->bhklv", k, k, ones),
        "(Q K^T)^2 V": np.einsum("bhts,bshv->bhtv", x**2, ones),
        "Q K^T V": np.einsum("bhts,bshv->bhtv", x, ones),
        "Y_denom": (x**2 / 2 + x + 1).sum(axis=-1),
    }
    assert of_efficient.keys() == expected.keys()
    for name, values in expected.items():
        assert float(of_efficient[name]) == pytest.approx(np.abs(values).max(), rel=1e-4)
    assert float(of_direct["Q K^T"]) == pytest.approx(np.abs(x).max(), rel=1e-5)


def small(**options):
    sizes = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}
    data = {"min_length": 8, "max_length": 8, "test_size": 8, "epoch_size": 64, "batch_size": 8}
    return task_config("sequence", **sizes | data | {"optimizer": "adamw", "warmup": 0} | options)


def test_a_training_is_watched_to_its_end():
    config = small(mechanism=AsCoded(), dtype="float16", steps=4)
    found = train_monitored(config, "efficient", 2)
    assert found["curve"][-1]["step"] == 4 and found["skipped"] < 4
    assert [point["step"] for point in found["sizes"]] == [1, 2, 4]
    assert 0 <= found["accuracy"] <= 1 and found["updated"] == 4 and "failed" not in found


def test_a_training_without_numbers_ends(monkeypatch):
    """Queries and keys are so large that their products leave float16 at once."""
    monkeypatch.setattr("experiments.sequences.monitoring.LOSS_SCALE", 2.0)
    layers = {"mechanism": AsCoded(), "dtype": "float16", "learning_rate": 1e-3, "steps": 9}
    config = small(**layers, pooling="mean")
    build = SequenceTask.model

    def large(self, config, data_spec, placement=None):
        model = build(self, config, data_spec)
        attention = model.backbone.blocks[0].attention
        for projection in (attention.query_projection, attention.key_projection):
            projection.kernel[...] = 300 * projection.kernel[...]
        return model

    monkeypatch.setattr(SequenceTask, "model", large)
    found = train_monitored(config, "efficient", 5, tests=False)
    assert found["failed"] <= 5 and found["updated"] == 0 and found["curve"] == []
    assert table4.max_product(found["sizes"][-1])[1] > 65504


@pytest.mark.parametrize(
    ("interval", "word"),
    [
        (Interval(-0.5, 1.0), HOLDS),
        (Interval(-1.5, 1.0), OPEN),
        (Interval(-5.0, 1.0), FAILS),
        (Interval(9.0, 1.0), HOLDS),
    ],
)
def test_acceptable_is_above_the_margin(interval, word):
    assert rules.acceptable(interval) == word and rules.acceptable(None).startswith(OPEN)


def test_a_data_set_of_which_nothing_was_learned_is_no_tie():
    """Unless one of the two learned something."""
    name, other = list(table3.DATA_SETS)[:2]

    def rows(accuracies):
        for data, found in accuracies.items():
            yield {"data": data, "mechanism": table3.SIMPLE, "seed": 0, "constant": 0.5}
            for mechanism, value in found.items():
                yield {"data": data, "mechanism": mechanism, "seed": 0, "accuracy": value}

    dead = {"taylorshift": 0.505, "softmax": 0.5, "eva": 0.6}
    found = list(rows({name: dead, other: {"taylorshift": 0.7, "softmax": 0.6, "eva": 0.6}}))
    assert table3.learned_sets(found, "taylorshift", "softmax") == [other]
    assert table3.learned_sets(found, "taylorshift", "eva") == [name, other]
    assert name in table3.left_out(found, "taylorshift", "softmax")
    words = [[Word(w) for w in found] for found in ([SMALLER, FAILS, OPEN], [SMALLER, OPEN, HOLDS])]
    assert [rules.on_majority(each) for each in words] == [SMALLER, OPEN]
    assert rules.on_majority([Word(FAILS)]) == rules.on_majority([Word(HOLDS)] * 2) == TOO_FEW


def test_convergence_overflow_and_length_have_words():
    assert rules.converges((2.3, 2.2)) == HOLDS and rules.converges((2.2, 2.3)) == OPEN
    assert rules.converges(None) == FAILS and opposite(rules.converges(None)) == HOLDS
    assert rules.overflows(65505.0) == HOLDS and rules.overflows(65504.0) == FAILS
    assert [rules.longer(x) for x in (1.2, 1.05, 1.0)] == [HOLDS, OPEN, FAILS]
    simple = {"data": "ListOps", "mechanism": table3.SIMPLE, "seed": 0, "constant": 0.14, "a": 0.25}
    for accuracy, word in ((0.145, HOLDS), (0.197, OPEN), (0.27, FAILS)):
        rows = [simple, {"data": "ListOps", "mechanism": "rfa", "seed": 0, "accuracy": accuracy}]
        assert table3.judge_not_learned("rfa", data_sets.LISTOPS)(rows).word == word


def rows_of_table4(gain=0.5):
    """Runs of which only the plain efficient one as coded fails; each stage adds ``gain``."""
    rows = []
    for key in table4.cases(table4.Size()):
        found = {"curve": [{"step": 5 * i, "loss": 2.4 - 0.01 * i} for i in range(1, 11)]}
        found |= {"skipped": 1, "updated": 50, "seconds": 1.0}
        if key["run"] == table4.ACCURACY:
            stage = STAGES.index(key["stage"])
            shift = gain * stage + 0.1 * key["seed"] * (1 + 0.1 * stage)
            found |= {"accuracy": (20 + shift) / 100, "loss": 2.2}
        plain = (key["by"], key["stage"], key["form"]) == (table4.CODED, "plain", "efficient")
        if key["by"] == table4.CODED:
            found["sizes"] = [{"step": s, "A_mod": 9.0 + s * plain * 1e4} for s in (1, 50)]
        if plain and key["dtype"] == table4.HALF:
            found |= {"failed": 50, "updated": 20}
        rows.append(key | found)
    return rows


def test_evaluations_without_normalization_are_judged_at_the_end():
    def rows(nan, loss, top, every=1):
        return [
            {"trained": name, "seed": seed, "records": [
                {"step": step * every, figure4.AS_TRAINED: {"accuracy": 0.3, "nan": 0.0},
                 figure4.FULL: {"accuracy": 0.3 - loss * (1 + seed / 9), "nan": 0.0},
                 figure4.HALF: {"accuracy": 0.0, "nan": nan},
                 "temperatures": [10.0, top * step]} for step in range(1, 6)]}
            for name in figure4.TRAINED for seed in range(3)
        ]  # fmt: skip

    def words(*case):
        return [s.verdict(rows(*case)).word for s in figure4.EXPERIMENT.statements]

    assert words(1.0, 0.1, 16.0) == [HOLDS, OPEN, HOLDS, HOLDS, HOLDS]  # 80; OPEN has no width
    assert words(0.0, -0.1, 3.0) == [FAILS, OPEN, FAILS, FAILS, OPEN]  # few steps
    assert words(0.0, -0.1, 3.0, 4000)[-1] == FAILS


def test_the_ablation_is_judged_by_curves_and_seeds():
    words = {s.says: s.verdict(rows_of_table4()).word for s in table4.EXPERIMENT.statements}
    assert list(words.values()) == [HOLDS, *[ONE_SEED] * 3, HOLDS, ONE_SEED]
    assert table4.plain_direct(rows_of_table4(3.0)).word == FAILS
    assert table4.judge_output_norm(rows_of_table4(-1.0)).word == FAILS
    told = table4.fails(table4.CODED, "plain", "efficient")(rows_of_table4())
    assert told.ours == "one run: no update after step 20"
    assert "A_mod up to 500,009" in table4.overflow(rows_of_table4()).ours
    with pytest.raises(NotMeasuredError):
        table4.judge_output_norm([row for row in rows_of_table4() if row["stage"] != "full"])


def test_the_ablation_has_the_papers_numbers_beside_ours():
    rows = rows_of_table4()
    page = table4.table(rows, table4.Size())
    assert "| plain | 47.1 | 20.1 ± 0.1 | 20.0 | - | 20.1 ± 0.1 | 20.0 |" in page
    line = "| as coded | plain | efficient | float16 | 2.38 to 2.30 | no update after step 20 |"
    assert f"{line} A_mod 10,009 | A_mod 500,009 |" in page
    assert len(table4.plot(rows).axes[0].lines) == 8 + 1  # and a cross


def test_runs_differ_in_what_their_keys_say():
    size = table4.Size()
    keys = table4.cases(size)
    assert len({tuple(key.values()) for key in keys}) == len(keys) == 8 + 18 + 6
    config = task_config("sequence", data="cifar-pixels", **table4.run_options(keys[0], size))
    assert config.layers.mechanism == AsCoded("plain") and config.layers.dtype == "float16"
    assert config.data.image_size == 16 and config.layers.num_heads == 1
    assert table4.mechanism("ours", "input", "float32") == ops.TaylorShift(normalize_output=False)


@pytest.mark.parametrize(
    "bytes_of",
    [
        lambda n: int(1e8 + 2.9e5 * n),
        lambda n: int(1e8 + 5e4 * n + 220 * n * n),
        lambda n: int(1e8 + 2.9e5 * (-(-n // 4096) * 4096)),
        lambda n: int(3e9 + 1e7 * n),
    ],
)
def test_the_longest_sequence_is_found_in_few_steps(bytes_of):
    found = memory.longest(bytes_of, 4e9)
    low, beyond = found["length"], found["beyond"]
    assert bytes_of(low) == found["bytes"] <= 4e9 < bytes_of(beyond)
    assert beyond <= max(memory.NEAR * low, low + memory.MULTIPLE)
    assert len(found["tried"]) <= 9


def test_what_always_or_never_fits_is_said():
    assert memory.longest(lambda n: n, 4e9)["beyond"] is None
    found = memory.longest(lambda n: int(5e9), 4e9)
    assert (found["length"], found["bytes"], found["beyond"]) == (0, 0, memory.MULTIPLE)


@pytest.mark.slow
def test_all_weights_take_memory_by_the_square_and_blocks_do_not():
    how = {"features": 8, "num_layers": 1, "hidden_features": 8}
    bytes_of = {
        kind: [memory.step_bytes(kind, 2, "none", n, **how) for n in (2048, 4096)]
        for kind in ("softmax, all weights", "taylorshift, efficient")
    }
    whole, linear = bytes_of["softmax, all weights"], bytes_of["taylorshift, efficient"]
    assert whole[1] > 3.5 * whole[0] > 4 * 2 * 2048**2 and linear[1] < 2.5 * linear[0]


def rows_of_memory(ours):
    lengths = {"taylorshift, efficient": ours, "taylorshift, direct": 9000}
    lengths |= {"softmax, all weights": 3000, "softmax, in blocks": 10000}
    return [
        {"kind": kind, "heads": heads, "remat": remat, "length": length, "bytes": 4 * 10**9,
         "beyond": length + 99, "tried": []}
        for heads in (8, 32)
        for remat in ("none", "blocks")
        for kind, length in lengths.items()
    ]  # fmt: skip


def test_lengths_are_compared_case_by_case():
    def words(rows):
        return [s.verdict(rows).word for s in memory.EXPERIMENT.statements]

    assert words(rows_of_memory(12000)) == [HOLDS, HOLDS, HOLDS]
    assert words(rows_of_memory(9500)) == [HOLDS, FAILS, OPEN]
    mixed = rows_of_memory(12000)
    mixed[0]["length"] = 100
    assert words(mixed)[0] == IN_PART
    page = memory.table(rows_of_memory(12000), memory.Size())
    assert "| taylorshift, efficient | 8 | none | 12,000 | 333,333 |" in page
    with pytest.raises(NotMeasuredError):
        memory.judge_longer("taylorshift, efficient", "linear")(rows_of_memory(1))


def test_the_mechanism_as_coded_stays_out_of_the_registry():
    assert AsCoded().name not in ops.list_mechanisms()
    with pytest.raises(ValueError, match="stage must be one of"):
        AsCoded(stage="half")
    assert dataclasses.replace(AsCoded(), is_half=False).capabilities.forms[1:] == FORMS


@pytest.mark.parametrize("mechanism", table3.mechanisms())
def test_lists_of_many_lengths_are_asked_of_those_that_can(mechanism):
    """What is learned of each position says nothing of longer lists, which the task refuses."""
    options = table3.extra_options(data_sets.LISTOPS, mechanism)
    config = data_sets.make_config(data_sets.LISTOPS, None, mechanism=mechanism, **options)
    assert bool(config.data.test_lengths) == (mechanism not in ("linformer", "aft"))
