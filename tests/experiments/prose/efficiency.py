"""Numbers in docs/efficiency.md."""

import re
import statistics
from collections.abc import Iterable
from functools import partial

from experiments.efficiency import elementwise_training, taylorshift_sizes
from experiments.efficiency.bars import BARS
from experiments.measured import Measured
from experiments.verdicts import FAILS, HOLDS, Verdict
from flax_linattn import ops
from flax_linattn.bench.comparison import TRAINING
from flax_linattn.bench.ratio import ratios
from tests.experiments.prose import Allowed, Sentence, find_statement, stored


def steps_beside_cell() -> Iterable[float]:
    rows = stored("efficiency/stream_steps-cpu.json")["rows"]
    times = [r["milliseconds"] for r in rows if r["rows"] == 1 and r["mechanism"] != "softmax"]
    ratios = [each["Stream.step"]["median"] / each["GRU cell"]["median"] for each in times]
    return min(ratios), max(ratios)


def verdict(experiment: Measured, text: str) -> Verdict:
    """The verdict on the statement of an experiment with these words."""
    return find_statement(experiment, text).verdict(experiment.rows(experiment.usual_scale))


def requirements() -> list[float]:
    """How many the suite of ratios meets, of how many; megabytes of two gradients."""
    rows = stored("efficiency/ratios.json")["rows"]
    met = sum(bar.met(bar.measured(rows)) for bar in BARS)
    sizes = {("aaren", 16_384): 0.0, ("elementwise_series, order 6, causal", 4096): 0.0}
    for row in rows:
        if row["pass"] == TRAINING and (place := (row["comparison"], row["length"])) in sizes:
            sizes[place] = row["results"]["ours"]["temporary_bytes"] / 1e6
    return [len(BARS), met, *sizes.values()]


def late_switches() -> Iterable[float]:
    """How long the efficient form takes where ``auto`` is direct, relative to it."""
    found = {(ratio.comparison, ratio.length, ratio.peer): ratio.time
             for ratio in ratios(stored("efficiency/ratios.json")["rows"])}  # fmt: skip
    for channels, length in ((32, 1024), (64, 2048)):
        times = found[f"taylorshift, auto, d = {channels}", length, "efficient"]
        yield statistics.median(times)


def power_of_memory() -> list[float]:
    """Exponent of the training memory of softmax attention with all weights."""
    ours = verdict(elementwise_training.EXPERIMENT, "SA's training memory grows quadr").ours
    (exponent,) = re.findall(r"^SA grows as L\^([\d.]+)", ours)
    return [float(exponent)]


def right_formulas() -> list[int]:
    """The length at which two formulas are right and one is wrong for small heads."""
    found = {name: verdict(taylorshift_sizes.EXPERIMENT, f"{name} is as large as its formula")
             for name in ("(Q K^T)^2 V", "Y_denom", "Y")}  # fmt: skip
    assert [of.word for of in found.values()] == [HOLDS, HOLDS, FAILS]
    lengths = {re.findall(r"N = ([\d,]+)", of.ours)[0] for of in found.values()}
    return [int(length.replace(",", "")) for length in lengths]


TRANSFORMER = "PyTorch, transformer"


def beside(peer: str, mechanism: str, of: str = "whole_models") -> list[float]:
    """How many times as fast a step of our model is as a peer's, by length."""
    rows = stored(f"efficiency/{of}-cpu.json")["rows"]
    times = {
        (r["length"], r["model"]): r["milliseconds"]["median"] for r in rows if "milliseconds" in r
    }
    lengths = sorted({length for length, _ in times})
    return [times[length, peer] / times[length, mechanism] for length in lengths]


def forecasters(*models: str) -> list[float]:
    """How many times as fast as PyTorch's transformer."""
    (times,) = zip(
        *(beside(TRANSFORMER, name, "whole_forecasters") for name in models), strict=True
    )
    return list(times)


def language_models(what: str, tokens: int, *models: str) -> list[float]:
    """How many times as fast as PyTorch's transformer."""
    rows = stored("efficiency/language_models-cpu.json")["rows"]
    (row,) = (row for row in rows if (row["what"], row["tokens"]) == (what, tokens))
    times = {name: each["median"] for name, each in row["milliseconds"].items()}
    return [times[TRANSFORMER] / times[name] for name in models]


def slowest_and_fastest(peer: str, mechanism: str) -> Iterable[float]:
    ratios = beside(peer, mechanism)
    return min(ratios), max(ratios)


def steps_over_few_tokens() -> Iterable[float]:
    """Of states of constant size, then of caches, least and most."""
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for row in stored("efficiency/growth-cpu.json")["rows"]:
        if row["pass"] == "step":
            few, many = (x["milliseconds"]["median"] for x in row["results"].values())
            constant = ops.get_mechanism(row["mechanism"]).capabilities.constant_memory
            ratios[constant].append(many / few)
    return [extreme(ratios[which]) for which in (True, False) for extreme in (min, max)]


def floor_times() -> dict[str, float]:
    """Medians of one row, and of prefill."""
    rows = stored("efficiency/taylorshift_floor-cpu.json")["rows"]
    chosen = (row for row in rows if row.get("rows", 1) == 1)
    return {k: x["median"] for row in chosen for k, x in row["milliseconds"].items()}


def step_over_floor() -> Iterable[float]:
    times = floor_times()
    floor = times["add in place"]
    return times["step"] / floor, times["step"] / (floor + times["read"])


def prefill_over_product() -> Iterable[float]:
    times = floor_times()
    return (times["prefill"] / times["one product"],)


def onnx_prefill(part: str, length: int) -> dict[str, dict[str, float]]:
    """Medians by mechanism and program."""
    rows = stored("efficiency/exported_prefill-cpu.json")["rows"]
    chosen = [r for r in rows if (r["part"], r["tokens"]) == (part, length)]
    return {r["mechanism"]: {k: x["median"] for k, x in r["microseconds"].items()} for r in chosen}


def onnx_ratios(slow: str, fast: str, part: str = "model") -> list[float]:
    """Least and most."""
    rows = onnx_prefill(part, 512).values()
    ratios = [row[slow] / row[fast] for row in rows if slow in row and fast in row]
    return [min(ratios), max(ratios)]


def chunks_beside_both() -> Iterable[float]:
    return [*onnx_ratios("ONNX, steps", "ONNX, chunks"), *onnx_ratios("ONNX, chunks", "JAX")]


def with_linear_attention(whole: float, length: int, plain: str) -> Iterable[float]:
    """How many times as fast a model of two layers would be."""
    attention = onnx_prefill("attention", length)["gated_delta"]
    return (whole / (whole - 2 * (attention[plain] - attention["LinearAttention"])),)


def prefill_with_linear_attention() -> Iterable[float]:
    whole = onnx_prefill("model", 512)["gated_delta"]["ONNX, chunks"]
    return with_linear_attention(whole, 512, "ONNX, chunks")


def step_with_linear_attention() -> Iterable[float]:
    rows = stored("efficiency/exported_steps-cpu.json")["rows"]
    (times,) = (r["microseconds"] for r in rows if r["model"] == "gated_delta")
    return with_linear_attention(times["ONNX Runtime"]["median"], 1, "ONNX, steps")


SENTENCES: list[Sentence] = [
    Sentence("Of {} requirements, {} are met", lambda: requirements()[:2]),
    Sentence(
        "`aaren` needs {:.0f} MB of temporary memory (3 MB at 1f0c0f2) and `elementwise_series` "
        "{:.0f} MB",
        lambda: requirements()[2:],
    ),
    Sentence("There the efficient form takes {:.2f} and {:.2f} times as long", late_switches),
    Sentence("With all weights, SA's memory grows as L^{:.2f};", power_of_memory),
    Sentence(
        "at N = {:,} (Q Kᵀ)² V and Y_denom are within 1 % of them, and Y with heads of 8 channels "
        "is not",
        right_formulas,
    ),
    Sentence(
        "A training step with Aaren is {:.2f} times as fast as PyTorch's transformer, with "
        "retention {:.2f}, linear attention {:.2f}, softmax {:.2f}, gated linear attention {:.2f}, "
        "TaylorShift {:.2f} and the gated delta rule {:.2f} times",
        lambda: language_models(
            *("training", 512, "aaren", "retention", "linear", "softmax", "gated_linear"),
            *("taylorshift", "gated_delta"),
        ),
    ),
    Sentence(
        "After 10,000 tokens Aaren generates a token {:.2f} times as fast as PyTorch, our softmax "
        "{:.2f} times",
        lambda: language_models("generation", 10_000, "aaren", "softmax"),
    ),
    Sentence(
        "A file of steps takes {:.0f} to {:.0f} times as long as JAX",
        partial(onnx_ratios, "ONNX, steps", "JAX"),
    ),
    Sentence(
        "is {:.0f} to {:.0f} times as fast as steps, and takes {:.0f} to {:.0f} times as long as "
        "JAX",
        chunks_beside_both,
    ),
    Sentence(
        "it is {:.1f} to {:.1f} times as fast as chunks",
        partial(onnx_ratios, "ONNX, chunks", "LinearAttention", "attention"),
    ),
    Sentence("with `gated_delta` would be {:.1f} times as fast", prefill_with_linear_attention),
    Sentence("A step of that model would be {:.1f} times as fast", step_with_linear_attention),
    Sentence(
        "takes {:.1f} times as long as it takes to read and write its state once, and {:.1f} times "
        "as long as to do that and read it a second time",
        step_over_floor,
    ),
    Sentence(
        "took {:.2f} to {:.2f} times as long after 100,000 tokens as after 1,000, those that read "
        "a cache {:.0f} to {:.0f} times",
        steps_over_few_tokens,
    ),
    Sentence("Prefill takes {:.1f} times as long as one product", prefill_over_product),
    Sentence(
        "Aaren is {:.1f}, {:.1f}, {:.1f} and {:.1f} times as fast as PyTorch's transformer",
        partial(beside, TRANSFORMER, "aaren"),
    ),
    Sentence(
        "with EA-series {:.1f}, {:.1f}, {:.1f} and {:.1f} times",
        partial(beside, TRANSFORMER, "elementwise_series"),
    ),
    Sentence(
        "are {:.1f}, {:.1f}, {:.1f} and {:.1f} times as fast as PyTorch's transformer",
        partial(beside, TRANSFORMER, "products with weights alone"),
    ),
    Sentence(
        "Our softmax, {:.1f} to {:.1f} times,",
        partial(slowest_and_fastest, TRANSFORMER, "softmax"),
    ),
    Sentence(
        "Aaren is {:.1f} to {:.1f} times as fast as it",
        partial(slowest_and_fastest, "PyTorch, LSTM", "aaren"),
    ),
    Sentence(
        "With Aaren a step is {:.2f} times as fast as PyTorch's transformer, a tie, with EA-series "
        "{:.2f}, softmax {:.2f}, TaylorShift {:.2f}, linear attention {:.2f} and gated linear "
        "attention {:.2f} times",
        partial(
            forecasters,
            *("aaren", "elementwise_series", "softmax", "taylorshift", "linear", "gated_linear"),
        ),
    ),
    Sentence(
        "weights alone are {:.2f} times as fast, PyTorch's LSTM {:.2f} times",
        partial(forecasters, "products with weights alone", "PyTorch, LSTM"),
    ),
    Sentence(
        "A step of one sequence takes {:.1f} to {:.1f} times as long as the cell", steps_beside_cell
    ),
]
ALLOWED: list[Allowed] = [
    Allowed("MB (17 MB). A layer", "of commit 1f0c0f2"),
    Allowed("adds 0 to 8 % to the temporary memory of training", "measured once"),
    Allowed("training is 1.3 to 2 times as fast", "of commit a2436e7c"),
    Allowed("took 1.3 to 1.9 times as long as at 1f0c0f2", "beside the results of that commit"),
    Allowed("2.2 to 2.7 times as long. The requirements", "beside the results of that commit"),
    Allowed("Aaren, section 3.2 and appendix A", "a section of the paper"),
    Allowed("Element-wise attention, table 1: operations", "a table of the paper"),
    Allowed("with its 95 % interval", "a level of confidence"),
    Allowed("each length 4 times the previous one", "a setting"),
    Allowed("Arrays beyond 32 MB", "a constant of glibc"),
    Allowed("(1.5, the noise of a shared machine)", "a flag's default"),
    Allowed(
        "at commit 009ec41 it was 3.2 to 4.3 times",
        "the same experiment with the library of then, whose table is not kept",
    ),
]
