"""The report: JSON for machines, a page for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median

from bench.figures import Row


@dataclass(frozen=True)
class Report:
    """One run: when, on what, with what, every row, and why some comparisons have none."""

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    rounds: int
    seconds: int
    rows: Mapping[str, list[Row]]
    skipped: Mapping[str, str]

    def to_json(self) -> str:
        """The whole report, every round's figures included."""
        rows = {
            name: [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in some]
            for name, some in self.rows.items()
        }
        return json.dumps({**asdict(self), "rows": rows}, indent=2, ensure_ascii=False) + "\n"

    def page(self) -> str:
        """``docs/performance.md``."""
        every = [row for some in self.rows.values() for row in some]
        held = [row for row in every if row.met is not None]
        lines = [
            "# Performance",
            "",
            f"Written by `scripts/bench` on {self.date}: {self.rounds} rounds, {self.seconds} s a measurement.",
            "Both sides of a line were measured in turn (A B A B …) in the same run; figures are medians, with",
            "the least and the most of the rounds. Everything ran on one machine, loader included, over its",
            "loopback: compare the two sides of a line, and nothing with figures from elsewhere.",
            "",
            "The measured processes have CORS and metrics on, and keys that are read are written to all the",
            "while, except beside a restore. Values are 100 bytes of JSON, keys 16 bytes. Requests a second come",
            "from `wrk` with one thread and, unless a line says otherwise, 32 keep-alive connections. Times of",
            "single reads beside a restore, a kill or a stop come from an open loop at a constant rate, from the",
            "moment each read was due.",
            "",
            *table(every),
            "",
            f"{sum(map(bool, (row.met for row in held)))} of {len(held)} targets are met.",
            *(f"\nNot measured: `{name}`, {why}." for name, why in self.skipped.items()),
            "",
            "By themselves: `.venv/bin/python -m bench.assignor` (a round of the assignor, up to 2,000 members),",
            "`.venv/bin/python -m bench.wire` (size and time of the group's messages).",
            "",
            "## Machine and versions",
            "",
            *_listed({**self.machine, **self.versions}),
        ]
        return "\n".join(lines) + "\n"


def table(rows: list[Row]) -> list[str]:
    """The rows as Markdown."""
    return [
        "| what | forebay | against | theirs | ratio | target | |",
        "|---|---:|---|---:|---:|---:|---|",
        *(
            f"| {row.what} | {_figure(row.ours, row.unit)} | {row.against} | {_figure(row.theirs, row.unit)} | "
            f"{_ratio(row)} | {_target(row)} | {_verdict(row)} |"
            for row in rows
        ),
    ]


def _figure(values: tuple[float, ...], unit: str) -> str:
    if not values:
        return ""
    return f"{_number(median(values))} ({_number(min(values))}–{_number(max(values))}) {unit}"


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"{_number(row.ratio)} ×"


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    sign = "≥" if row.target.at_least else "≤"
    return f"{sign} {row.target.bound:g} {'×' if row.target.of_ratio else row.unit}"


def _verdict(row: Row) -> str:
    return "" if row.met is None else "met" if row.met else "**missed**"


def _listed(items: Mapping[str, str]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in items.items())]
