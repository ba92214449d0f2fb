"""Numbers in README.md."""

from collections.abc import Iterable

from tests.experiments.prose import Allowed, Sentence, stored
from tests.experiments.prose.time_series import lost

AAREN, FORECASTS = "classification.aaren", "forecasting.aaren"


def stream_growth() -> Iterable[float]:
    """Bytes of the states of Aaren and softmax, and how many times as long softmax's step takes."""
    rows = stored("efficiency/aaren_stream-cpu.json")["rows"]
    (streams,) = (row["streams"] for row in rows if row["what"] == "streams")
    aaren, softmax = streams["aaren"][-1], streams["softmax"][-1]
    growth = softmax["milliseconds"]["median"] / streams["softmax"][0]["milliseconds"]["median"]
    assert aaren["milliseconds"]["median"] <= streams["aaren"][0]["milliseconds"]["median"]
    return aaren["state_bytes"] / 1e3, aaren["tokens"], softmax["state_bytes"] / 1e6, growth


SENTENCES = [
    Sentence(
        "Aaren's state stays at {:.2f} kB, and its median step takes no longer after {:,} tokens "
        "than after 64. The key/value cache of softmax attention grows to {:.1f} MB, and its step "
        "takes {:.0f} times as long",
        stream_growth,
    ),
    Sentence(
        "A ridge regression beats the Aaren forecaster in {} of {} rows; MiniRocket beats the "
        "Aaren classifier in {} of {} and the softmax classifier in {} of {}",
        lambda: (
            *lost(FORECASTS, "aaren", "ridge"),
            *lost(AAREN, "aaren", "MiniRocket"),
            *lost(AAREN, "softmax", "MiniRocket"),
        ),
    ),
]
ALLOWED: list[Allowed] = []
