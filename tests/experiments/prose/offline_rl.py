"""Numbers in docs/offline-rl.md."""

import statistics
from typing import Any

from experiments.offline_rl import latency, positions, rules, table1, target_return
from experiments.offline_rl.data_sets import DATA_SETS
from experiments.verdicts import HOLDS, OPEN
from tests.experiments.prose import Allowed, Sentence, stored

Way = tuple[str, str]


def rows() -> list[dict[str, Any]]:
    """Of table 1."""
    found: list[dict[str, Any]] = stored("offline_rl/table1.json")["rows"]
    return found


def over(ours: Way, other: Way) -> list[float]:
    """The interval of a difference over robots."""
    found = table1.over_robots(table1.differences(rows(), ours, other))
    assert found is not None
    return [found.middle, found.half]


def aaren() -> list[Any]:
    """Compared with softmax attention, by the window, with the selected and the last parameters."""
    found = [over(("aaren", mode), ("softmax", mode)) for mode in ("window", "last")]
    assert found[0][0] > 0 > found[1][0]
    robots = {DATA_SETS[data].robot for data in table1.data_sets(rows())}
    return [*found[0], *found[1], len(robots), rules.MARGIN]


def acts(act: str) -> list[float]:
    """An inference mode of each mechanism, compared with the window."""
    return [
        number
        for mechanism in ("aaren", "softmax", "elementwise_series")
        for number in over((mechanism, act), (mechanism, "window"))
    ]


def streamed() -> list[float]:
    """All steps, and where that costs Aaren most."""
    found = table1.differences(rows(), ("aaren", "stream"), ("aaren", "window"))
    means = {data: statistics.mean(own) for data, own in found.items()}
    worst = min(means, key=lambda data: means[data])
    assert worst == "Walker2d medium"
    return [*acts("stream"), means[worst]]


def restarted() -> list[float]:
    """Restarts, which hold with EA-series alone."""
    words = {
        mechanism: table1.judge_pair((mechanism, "restart"), (mechanism, "window"))(rows()).word
        for mechanism in table1.MECHANISMS
    }
    assert words == {"softmax": OPEN, "aaren": OPEN, "elementwise_series": HOLDS}
    found = acts("restart")
    assert max(map(abs, found[::2])) < 2
    sets = table1.data_sets(rows())
    seeds = [len(table1.scores(rows(), name, "elementwise_series")) for name in sets]
    return [*found[4:], seeds.count(1), len(seeds), *found[:4]]


def cloned() -> list[Any]:
    """Aaren compared with clones of all steps and of the best tenth."""
    numbers: list[Any] = []
    for baseline in ("behavior_cloning", "percentile_behavior_cloning"):
        own = {
            data: statistics.mean(table1.scores(rows(), data, "aaren"))
            - table1.find_rows(rows(), data, table1.CUSTOMARY)[0][baseline]["score"]
            for data in table1.data_sets(rows())
        }
        found = table1.over_robots({data: [value] for data, value in own.items()})
        assert found is not None
        numbers += [found.middle, found.half, sum(value < 0 for value in own.values())]
    return numbers


def equal() -> list[float]:
    """The largest difference between streamed and parallel actions."""
    own = [row for row in rows() if row["mechanism"] != table1.CUSTOMARY]
    return [max(row["stream_max_error"] for row in own)]


def stepped() -> list[Any]:
    """Milliseconds of a step at the last one that was timed, one environment."""
    timed = stored("offline_rl/latency.json")["rows"]
    last = latency.Size().steps[-1]
    found = {way: latency.at(timed, way=way, rows=1, step=last) for way in latency.WAYS}
    return [
        found["stream"]["milliseconds"],
        last,
        found["stream"]["bytes"],
        found["cache"]["milliseconds"],
        found["cache"]["bytes"] / 1e6,
        found["window"]["milliseconds"],
        found["restart"]["milliseconds"],
    ]


def followed() -> list[float]:
    """Rank correlations of what was asked for and returned, by data set, Aaren by the window."""
    found = stored("offline_rl/target_return.json")["rows"]
    return [
        target_return.correlation(row, "window")
        for data in target_return.Size().data
        for row in found
        if (row["data"], row["mechanism"]) == (data, "aaren")
    ]


def told() -> list[float]:
    """Means over data sets of stream and window, by how the time is told, Aaren."""
    found = stored("offline_rl/positions.json")["rows"]
    return [
        statistics.mean(
            statistics.mean(positions.scores(found, data, "aaren", way, act))
            for data in table1.data_sets(found)
        )
        for way in positions.WAYS
        for act in ("stream", "window")
    ]


SENTENCES: list[Sentence] = [
    Sentence(
        "Aaren's score minus that of softmax attention is {:+.1f} ± {:.1f} points with the "
        "parameters of the lowest held-out error, and {:+.1f} ± {:.1f} with the last parameters, "
        "over {} robots. The margin is {:g} points",
        aaren,
    ),
    Sentence(
        "changes the score by {:+.1f} ± {:.1f} points with Aaren, {:+.1f} ± {:.1f} with softmax "
        "attention and {:+.1f} ± {:.1f} with EA-series; at worst, Aaren on Walker2d medium, by "
        "{:+.1f} points",
        streamed,
    ),
    Sentence(
        "{:+.1f} ± {:.1f} points, within the margin (one seed on {} of the {} data sets). Not "
        "decided with Aaren, {:+.1f} ± {:.1f} points, and softmax attention, {:+.1f} ± {:.1f}",
        restarted,
    ),
    Sentence(
        "Aaren's score minus that of a perceptron that clones all actions is {:+.1f} ± {:.1f} "
        "points, worse on {} of 12 sets; minus that of one that clones the best tenth, {:+.1f} ± "
        "{:.1f} points, worse on {}",
        cloned,
    ),
    Sentence("differ by {:.1e} at most", equal),
    Sentence(
        "On average over three sets its stream scores {:.1f} and its window {:.1f} with learned "
        "positions in the episode, {:.1f} and {:.1f} with sinusoidal positions in the context, "
        "{:.1f} and {:.1f} without time encoding",
        told,
    ),
    Sentence(
        "the rank correlation of Aaren's target and achieved return with the window is {:+.2f} on "
        "HalfCheetah medium-expert, {:+.2f} on Hopper medium-replay and {:+.2f} on Walker2d "
        "medium-expert",
        followed,
    ),
    Sentence(
        "With one environment a step of Aaren's stream takes {:.2f} ms at step {:,} and holds {:,} "
        "bytes; with a cache {:.2f} ms and {:.0f} MB; with a window {:.2f} ms; with a state that "
        "is reset {:.2f} ms",
        stepped,
    ),
]

ALLOWED = [Allowed("95 % confidence intervals over four robots", "a level of confidence")]
