"""Statements of a paper on time or memory, with the verdicts of our measured rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.margins import is_stated_before
from experiments.verdicts import CASES, NOT_RUN, NotMeasuredError, Rule, Verdict, get_rules
from flax_linattn.bench.report import markdown

Rows = Sequence[dict[str, Any]]
Judge = Callable[[Rows], Verdict]


@dataclasses.dataclass(frozen=True)
class Statement:
    """A statement of a paper and its judge.

    Attributes:
        where: the paper, and where in it.
        says: what it says, in our words.
        judge: the verdict of an experiment's rows; None where nothing is measured.
        why: where nothing is measured, the reason.
        results: Names of the result files whose rows decide the claim; each row names its file
            under "results". Defaults to the results of the experiment itself.
        stated: Time, in ISO 8601, at which ``judge`` was added or last changed, if rows were known
            by then. Defaults to a time no later than its rules.
        fitted: Whether the options of the runs were chosen so that they agree with the claim.
    """

    where: str
    says: str
    judge: Judge | None = None
    why: str = ""
    results: tuple[str, ...] = ()
    stated: str = ""
    fitted: bool = False

    def verdict(self, rows: Rows = ()) -> Verdict:
        """What these rows say of it."""
        if self.judge is None:
            return Verdict(NOT_RUN, self.why)
        try:
            return self.judge(rows)
        except NotMeasuredError as missing:
            return Verdict(NOT_RUN, str(missing))


def statements_table(
    statements: Iterable[Statement], rows: Rows, head: Mapping[str, Any]
) -> list[str]:
    """One line per statement, and the rules that decided; nothing if there are none.

    Args:
        statements: of the paper.
        rows: that decide.
        head: where they came from.
    """
    judged = [(statement, statement.verdict(rows)) for statement in statements]
    if not judged:
        return []

    def word(statement: Statement, verdict: Verdict) -> str:
        day, time = statement.stated[:10], statement.stated[11:16]
        late = f", *judged this way since {day} {time} UTC, after these rows were measured*"
        fitted = ", *with options chosen to match this*" * statement.fitted
        return f"**{verdict.word}**" + late * early((), head, statement.stated) + fitted

    lines = [[f"{s.where}: {s.says}", v.ours, word(s, v)] for s, v in judged]
    used = rules_in(verdict for _, verdict in judged)
    return [markdown(["paper", "ours", "verdict"], lines), rules_text(used, head)]


def rules_in(verdicts: Iterable[Verdict]) -> list[Rule]:
    """All that gave these, each once, that of several cases last."""
    rules = dict.fromkeys(rule for verdict in verdicts for rule in get_rules(verdict.word))
    return sorted(rules, key=lambda rule: rule == CASES)


def rules_text(rules: Sequence[Rule], head: Mapping[str, Any] | None = None) -> str:
    """The rules for a page; nothing if there are none.

    Args:
        rules: in their order.
        head: of the rows that they judge; rules that are younger say so. None: each rule says when
            it was stated.
    """
    if not rules:
        return ""
    if head is None:
        dated = (f"- {rule.text} *Stated {_time(rule.stated)}.*" for rule in rules)
        return "\n\n".join(["Rules:", "\n".join(dated)])

    def line(rule: Rule) -> str:
        late = early([rule], head)
        when = f" *Stated {rule.stated[:10]}, after these rows were measured, "
        return f"- {rule.text}{(when + 'so they do not test this rule.*') * late}"

    times = sorted({rule.stated for rule in rules if not early([rule], head)})
    when = " and ".join(map(_time, times))
    heading = f"Rules, stated {when}:" if times else "Rules:"
    return "\n\n".join([heading, "\n".join(map(line, rules))])


def _time(stated: str) -> str:
    """A time in ISO 8601 to the minute, for a page."""
    return f"{stated[:10]} {stated[11:16]} UTC"


def early(rules: Iterable[Rule], head: Mapping[str, Any], stated: str = "") -> bool:
    """Whether rows were measured before the rules, or ``Statement.stated``, that judge them."""
    times = [*(rule.stated for rule in rules), *[stated] * bool(stated)]
    return any(not is_stated_before(time, head) for time in times)
