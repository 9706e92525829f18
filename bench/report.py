"""The report: JSON for machines, a page for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median

from bench.figures import Row, Series, number
from bench.headlines import HEADLINES
from bench.limits import limit


@dataclass(frozen=True)
class Report:
    """One run: when, on what, with what, all that was found, and why some comparisons found nothing."""

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    rounds: int
    seconds: int
    found: Mapping[str, Sequence[Row | Series]]
    skipped: Mapping[str, str]
    again: Mapping[str, str] = field(default_factory=dict)
    """Comparisons that were measured again later, and at which commit."""

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of ``to_json``."""
        document = json.loads(text)
        found = {
            name: [(Series if "points" in one else Row).of(one) for one in some]
            for name, some in document["found"].items()
        }
        return cls(**{**document, "found": found})

    def with_newer(self, newer: Report, order: Sequence[str]) -> Report:
        """This report with what a newer one found in place of its own; ``order`` is that of the comparisons."""
        found = {**self.found, **newer.found}
        return replace(
            self,
            versions={**newer.versions, **self.versions},
            found={name: found[name] for name in order if name in found},
            skipped={name: why for name, why in self.skipped.items() if name not in newer.found},
            again={**self.again, **dict.fromkeys(newer.found, newer.versions["forebay"])},
        )

    @property
    def rows(self) -> list[Row]:
        """All rows, those of one comparison after those of another."""
        return [row for some in self.found.values() for row in _rows(some)]

    @property
    def series(self) -> list[Series]:
        """All series likewise."""
        return [series for some in self.found.values() for series in _series(some)]

    def to_json(self) -> str:
        """The whole report, every round's figures included."""
        found = {name: [figures.document() for figures in some] for name, some in self.found.items()}
        return json.dumps({**asdict(self), "found": found}, indent=2, ensure_ascii=False) + "\n"

    def page(self) -> str:
        """``docs/performance.md``: the lines that answer what users ask."""
        by_name = {(row.what, row.against): row for row in self.rows}
        answers = [(one.question, by_name.get((one.what, one.against))) for one in HEADLINES]
        lines = [
            "# Performance",
            "",
            "How fast is it? On one machine with two cores, loader included, each line against something else in",
            "the same run. [All figures](figures.md) have their spread, their targets, how cost grows, and what",
            "the machine was. Compare the two sides of a line, and nothing with figures from elsewhere.",
            "",
            "| | forebay | against | theirs | ratio |",
            "|---|---:|---|---:|---:|",
            *(_answer(question, row) for question, row in answers if row is not None),
            "",
            "What TLS costs is under [Security](security.md#tls), what memory, disk and cores you need under",
            "[Capacity](capacity.md).",
        ]
        return "\n".join(lines) + "\n"

    def figures_page(self) -> str:
        """``docs/figures.md``: everything."""
        held = [row for row in self.rows if row.met is not None]
        lines = [
            "# Figures",
            "",
            f"Written by `scripts/bench` on {self.date}: {self.rounds} rounds, {self.seconds} s a measurement.",
            "Both sides of a line were measured in turn (A B A B …) in the same run. Figures are medians, with",
            "the least and the most of the rounds. Everything ran on one machine, loader included, over its",
            "loopback: compare the two sides of a line, and nothing with figures from elsewhere.",
            "",
            "The measured processes have CORS and metrics on, and authentication where `wrk` asks them. Keys that",
            "are read are written to all the while, except beside a restore. Values are 100 bytes of JSON, keys",
            "16 bytes. Requests a second come from `wrk` with one thread and, unless a line says otherwise, 32",
            "keep-alive connections. Times of single reads beside a restore, a kill or a stop come from an open",
            "loop at a constant rate, from the moment each read was due. Its thread goes ahead of others, if the",
            "machine allows it.",
            "",
            "Values of large state (8 and 20 GB) have 380 and 2,000 bytes, and none is written unless a line says",
            "so. Its readers were measured one after the other, with none of their files in memory at first.",
            "",
            *table(self.rows),
            "",
            f"{sum(map(bool, (row.met for row in held)))} of {len(held)} targets are met.",
            *(f"\nNot measured: `{name}`, {why}." for name, why in self.skipped.items()),
            *(f"\nMeasured again after the others: `{name}`, {commit}." for name, commit in self.again.items()),
            "",
            "By themselves: `.venv/bin/python -m bench.assignor` (a round of the assignor, up to 2,000 members),",
            "`.venv/bin/python -m bench.wire` (size and time of the group's messages).",
            "",
            *(_growth(self.series) if self.series else ()),
            "## Machine and versions",
            "",
            *_listed({**self.machine, **self.versions}),
        ]
        return "\n".join(lines) + "\n"


def tables(found: Sequence[Row | Series]) -> list[str]:
    """What was found as Markdown."""
    return [*(table(_rows(found)) if _rows(found) else ()), *_series_tables(_series(found))]


def table(rows: Sequence[Row]) -> list[str]:
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


def _rows(found: Sequence[Row | Series]) -> list[Row]:
    return [figures for figures in found if isinstance(figures, Row)]


def _series(found: Sequence[Row | Series]) -> list[Series]:
    return [figures for figures in found if isinstance(figures, Series)]


def _series_tables(series: Sequence[Series]) -> list[str]:
    return [line for one in series for line in ("", *_series_table(one))]


def _series_table(series: Series) -> list[str]:
    return [
        f"| {series.what} | requests/s | | p99 {series.latency_of}, ms | |",
        "|---:|---:|---:|---:|---:|",
        *(
            f"| {series.size(point)} | {_spread(point.requests_per_second)} | {number(throughput)} × | "
            f"{_spread(point.p99_ms)} | {number(p99)} × |"
            for point, throughput, p99 in zip(
                series.points, series.throughput_ratios, series.p99_ratios, strict=True
            )
        ),
    ]


def _growth(series: Sequence[Series]) -> list[str]:
    return [
        "## How cost grows",
        "",
        "Single reads of random keys of one worker, while one thing grows and all else stays as it is: one store",
        "of 4 partitions with 20,000 keys, all in memory, and 32 connections. Large values are fewer, 64 MiB of",
        "them at most. State larger than the block cache is in the system's cache of files, not read from disk.",
        "Meanwhile ten keys a second are written. A × is by the smallest size.",
        "",
        "Requests a second come from `wrk`. The p99 is measured after them, by an open loop at the rate that is",
        "named, from the moment each read was due. That of a growing number of connections is of `wrk`'s own",
        "requests: as each waits for those of all other connections, it grows with them by itself, and the",
        "opening of all connections at once is part of it.",
        "",
        "![Throughput and p99 as each thing grows](growth.svg)",
        *_series_tables(series),
        "",
    ]


def _answer(question: str, row: Row) -> str:
    ours, theirs = _median(row.ours, row.unit), _median(row.theirs, row.unit)
    return f"| {question} | {ours} | {row.against} | {theirs} | {_ratio(row)} |"


def _median(values: tuple[float, ...], unit: str) -> str:
    return f"{number(median(values))} {unit}" if values else ""


def _figure(values: tuple[float, ...], unit: str) -> str:
    if not values:
        return ""
    return f"{_spread(values)} {unit}"


def _spread(values: Sequence[float]) -> str:
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"{number(row.ratio)} ×"


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    sign = "≥" if row.target.at_least else "≤"
    return f"{sign} {row.target.bound:g} {'×' if row.target.of_ratio else row.unit}"


def _verdict(row: Row) -> str:
    if row.met is None:
        return ""
    stands_in_the_way = limit(row)
    return "met" if row.met else "**missed**" + (f": {stands_in_the_way}" if stands_in_the_way else "")


def _listed(items: Mapping[str, str]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in items.items())]
