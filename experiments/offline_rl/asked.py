"""What is returned, of what is asked for.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.offline_rl.asked

A decision transformer is told the return that it is to come to. Chen et al. (2021, figure 4) show
that it follows; none of our papers measures it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from scipy import stats

from experiments.measured import Measured, Rows
from experiments.offline_rl import table1
from experiments.offline_rl.rules import follows
from experiments.offline_rl.trained import make_run_environments, timed, trained
from experiments.statements import Statement
from experiments.verdicts import Verdict, all_of
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.offline_rl import OfflineRLConfig

ACTS = ("window", "restart")


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained and asked for, all else as in table 1."""

    data: tuple[str, ...] = (
        "HalfCheetah medium-expert", "Hopper medium-replay", "Walker2d medium-expert",
    )  # fmt: skip
    mechanisms: tuple[str, ...] = ("softmax", "aaren")
    shares: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25)
    """Of the best return of the data."""


def measure(size: Size, journal: Journal) -> None:
    for data in size.data:
        for mechanism in size.mechanisms:
            config = table1.configuration(data, table1.Size(), mechanism=mechanism)
            if config is not None:
                key = {"data": data, "mechanism": mechanism}
                journal.row(key, partial(one, config, size.shares))


def one(config: OfflineRLConfig, shares: Sequence[float]) -> dict[str, Any]:
    """A run that plays for several returns."""
    run, _ = trained(config)
    asked = [share * run.data_spec.best_return for share in shares]
    with make_run_environments(run) as environments:
        found = {
            act: [
                timed(run, environments, act=act, target_return=target)["returns"]
                for target in asked
            ]
            for act in ACTS
        }
    return {
        "best": run.data_spec.best_return,
        "mean": run.data_spec.mean_return,
        "asked": asked,
        **found,
    }


def correlation(row: dict[str, Any], act: str) -> float:
    """The rank correlation of what was asked for, up to the best of the data, and returned."""
    pairs = [
        (asked, statistics.mean(returns))
        for asked, returns in zip(row["asked"], row[act], strict=True)
        if asked <= row["best"] * (1 + 1e-9)
    ]
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


def followed(mechanism: str, act: str) -> Any:
    """The verdict on a mechanism and a way to act, over data sets."""

    def judge(rows: Sequence[dict[str, Any]]) -> Verdict:
        found = {
            row["data"]: correlation(row, act) for row in rows if row["mechanism"] == mechanism
        }
        told = ", ".join(f"{data} {value:+.2f}" for data, value in found.items())
        return Verdict(all_of(map(follows, found.values())), f"rank correlations {told}")

    return judge


def table(rows: Rows, size: Size) -> str:
    """A line a run and way to act."""
    header = ["data, best", "attention", "", *(f"{share:g} of the best" for share in size.shares)]
    lines = []
    for row in rows:
        first = [f"{row['data']}, {row['best']:,.0f}", f"`{row['mechanism']}`"]
        lines.append([*first, "target return", *(f"{own:,.0f}" for own in row["asked"])])
        for act in ACTS:
            means = [f"{statistics.mean(own):,.0f}" for own in row[act]]
            lines.append(["", "", act, *means])
    note = "Returns, mean of 10 episodes, one seed. Not D4RL: see table 1."
    return f"{markdown(header, lines)}\n\n{note}"


def draw(rows: Rows) -> Any:
    """A panel a data set: returned against asked for."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    figure = import_figure()(figsize=(3.2 * len(sets) + 0.4, 3.4), layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False)[0]
    for axis, data in zip(panels, sets, strict=True):
        own = [row for row in rows if row["data"] == data]
        for number, row in enumerate(own):
            for act, line in zip(ACTS, ("o-", "^--"), strict=True):
                means = [statistics.mean(returns) for returns in row[act]]
                label = f"{row['mechanism']}, {act}"
                axis.plot(row["asked"], means, line, color=f"C{number}", markersize=4, label=label)
        last = own[0]["asked"][-1]
        axis.plot([0, last], [0, last], color="0.6", linewidth=0.8, zorder=0)
        axis.axvline(own[0]["best"], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axis.set_title(data, fontsize=9)
        axis.set_xlabel("target return")
    panels[0].set_ylabel("returned")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


EXPERIMENT = Measured(
    module="experiments.offline_rl.asked",
    about="not measured in any of the papers",
    sizes={"": Size()},
    measure=measure,
    table=table,
    draw=draw,
    statements=tuple(
        Statement(
            "ours",
            f"with {mechanism} and {act} inference, a higher target return gives a higher return",
            followed(mechanism, act),
        )
        for mechanism in Size().mechanisms
        for act in ACTS
    ),
    left_out={"": "the other data sets and further seeds, for lack of time"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
