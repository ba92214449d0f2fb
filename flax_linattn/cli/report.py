"""Results of runs, printed."""

from __future__ import annotations

from typing import Any

from flax_linattn.tasks import Report


def print_report(report: Report) -> None:
    """Prints what is a line a name, how the model compares, the tables; files hold the rest."""
    single = {name: v for name, v in report.values.items() if not isinstance(v, list | dict)}
    width = max(map(len, single), default=0)
    for name, value in single.items():
        print(f"{name:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
    if report.verdict:
        lost = report.judged["beaten_by"] or report.judged.get("beaten_by_on_validation")
        print(f"{'warning: ' if lost else ''}{report.verdict}")
    for name in report.tables:
        _print_table(report.values[name])


def _print_table(rows: list[dict[str, Any]]) -> None:
    cells = [list(rows[0]), *(list(map(_cell, row.values())) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print()
    for line in cells:
        print("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return str(float(f"{value:.6g}"))
    return "" if value is None else str(value)
