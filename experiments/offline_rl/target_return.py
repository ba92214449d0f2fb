"""Target return compared with achieved return.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.offline_rl.target_return

A decision transformer receives the target return. Chen et al. (2021, figure 4) show that achieved
returns follow it; none of the implemented papers measures it.
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
from experiments.offline_rl.runs import make_run_environments, play_timed, train_run
from experiments.statements import Statement
from experiments.verdicts import Verdict, combine, one_seed
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.offline_rl import OfflineRLConfig

MODES = ("window", "restart")


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained and asked for, all else as in table 1."""

    data: tuple[str, ...] = (
        "HalfCheetah medium-expert", "Hopper medium-replay", "Walker2d medium-expert",
    )  # fmt: skip
    mechanisms: tuple[str, ...] = ("softmax", "aaren")
    fractions: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25)
    """Of the best return of the data."""


def measure(size: Size, journal: Journal) -> None:
    for data in size.data:
        for mechanism in size.mechanisms:
            config = table1.configuration(data, table1.Size(), mechanism=mechanism)
            if config is not None:
                key = {"data": data, "mechanism": mechanism}
                journal.row(key, partial(play_returns, config, size.fractions))


def play_returns(config: OfflineRLConfig, fractions: Sequence[float]) -> dict[str, Any]:
    """Trains a run and plays it for each target return and inference mode."""
    run, _ = train_run(config)
    targets = [fraction * run.data_spec.best_return for fraction in fractions]
    with make_run_environments(run) as environments:
        returns = {
            mode: [
                play_timed(run, environments, act=mode, target_return=target)["returns"]
                for target in targets
            ]
            for mode in MODES
        }
    return {
        "best": run.data_spec.best_return,
        "mean": run.data_spec.mean_return,
        "target_returns": targets,
        **returns,
    }


def correlation(row: dict[str, Any], mode: str) -> float:
    """The rank correlation of target and achieved returns, up to the best of the data."""
    pairs = [
        (target, statistics.mean(returns))
        for target, returns in zip(row["target_returns"], row[mode], strict=True)
        if target <= row["best"] * (1 + 1e-9)
    ]
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


def judge_correlation(mechanism: str, mode: str) -> Any:
    """The verdict on a mechanism and an inference mode, over data sets."""

    def judge(rows: Rows) -> Verdict:
        values = {
            row["data"]: correlation(row, mode) for row in rows if row["mechanism"] == mechanism
        }
        listed = ", ".join(f"{data} {each:+.2f}" for data, each in values.items())
        word = one_seed(combine(map(follows, values.values())))
        return Verdict(word, f"rank correlations, one run each: {listed}")

    return judge


def table(rows: Rows, size: Size) -> str:
    """Achieved returns, a line for each run and inference mode."""
    header = ["data, best", "attention", "", *(f"{x:g} of the best" for x in size.fractions)]
    lines = []
    for row in rows:
        first = [f"{row['data']}, {row['best']:,.0f}", f"`{row['mechanism']}`"]
        lines.append([*first, "target return", *(f"{own:,.0f}" for own in row["target_returns"])])
        for mode in MODES:
            means = [f"{statistics.mean(own):,.0f}" for own in row[mode]]
            lines.append(["", "", mode, *means])
    note = "Returns, mean of 10 episodes, one seed. Not D4RL: see table 1."
    return f"{markdown(header, lines)}\n\n{note}"


def plot(rows: Rows) -> Any:
    """Achieved returns against target returns, a panel for each data set."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    figure = import_figure()(figsize=(3.2 * len(sets) + 0.4, 3.4), layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False)[0]
    for axis, data in zip(panels, sets, strict=True):
        own = [row for row in rows if row["data"] == data]
        for number, row in enumerate(own):
            for mode, line in zip(MODES, ("o-", "^--"), strict=True):
                means = [statistics.mean(returns) for returns in row[mode]]
                label = f"{row['mechanism']}, {mode}"
                x = row["target_returns"]
                axis.plot(x, means, line, color=f"C{number}", markersize=4, label=label)
        last = own[0]["target_returns"][-1]
        axis.plot([0, last], [0, last], color="0.6", linewidth=0.8, zorder=0)
        axis.axvline(own[0]["best"], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axis.set_title(data, fontsize=9)
        axis.set_xlabel("target return")
    panels[0].set_ylabel("returned")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


EXPERIMENT = Measured(
    module="experiments.offline_rl.target_return",
    needs_data=True,
    extras="plots,rl",
    sizes={"": Size()},
    measure=measure,
    table=table,
    plot=plot,
    statements=tuple(
        Statement(
            "ours",
            f"with {mechanism} and {act} inference, a higher target return gives a higher return",
            judge_correlation(mechanism, act),
        )
        for mechanism in Size().mechanisms
        for act in MODES
    ),
    left_out={"": "the other data sets and further seeds, for lack of time"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
