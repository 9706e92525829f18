"""How often a job compacts the SQLite logs that it writes."""

import math
import time
from types import SimpleNamespace

from forebay.store_spec import StoreSpec
from forebay_changelog.due_compaction import DueCompaction
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits
from tests.support.cluster import wait_until

SLOW, QUICK = (StoreSpec(name, "key-value", "string", "json", "murmur2", name, 1) for name in ("slow", "quick"))


class Clock:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s

    def time(self) -> float:
        return time.time() + self.passed_s


def test_slow_logs_are_compacted_less_often(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("forebay_changelog.due_compaction.time", clock)
    changelog = SqliteChangelog(tmp_path)
    for spec in (SLOW, QUICK):
        changelog.ensure(spec)
    compacted: list[str] = []

    def compact(spec: StoreSpec) -> None:
        SqliteChangelog.compact(changelog, spec, CompactionLimits())
        clock.passed_s += 60 if spec is SLOW else 0
        compacted.append(spec.name)

    compactor = SimpleNamespace(compacted_ms=changelog.compacted_ms, compact=compact)
    compaction = DueCompaction(SimpleNamespace(compactor=lambda spec: compactor), (SLOW, QUICK))

    def compacted_after(passed_s: float) -> list[str]:
        clock.passed_s += passed_s
        compacted.clear()
        compaction.begin_if_due()
        wait_until(lambda: compaction._due < math.inf, "the end")
        return list(compacted)

    assert compacted_after(0) == ["slow", "quick"]
    assert compacted_after(0) == []
    assert compacted_after(2_350) == [], "a minute is a fiftieth of fifty minutes"
    assert compacted_after(601) == ["slow", "quick"]
    for name in ("slow", "quick"):
        with changelog._topics() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO compaction VALUES (?, ?)", (name, clock.time() * 1000 + 3e6)
            )
    assert compacted_after(3_001) == [], "another job has done it"
    assert compacted_after(1_000) == [], "which makes the logs no quicker"
