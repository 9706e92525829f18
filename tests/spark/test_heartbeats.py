"""Heartbeats that a driver writes for its queries' progress while the log is slow."""

import json
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.errors import BatchConflict
from tests.support.cluster import wait_until

pytestmark = pytest.mark.spark


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def idle(query: str, at_ms: int) -> SimpleNamespace:
    """An event as the JVM has it."""
    return SimpleNamespace(id=lambda: query, timestamp=lambda: iso(at_ms))


def progress(query: str, at_ms: int, batch: int, *sources: dict[str, Any]) -> SimpleNamespace:
    """An event as the JVM has it."""
    document = {"id": query, "timestamp": iso(at_ms), "batchId": batch, "sources": sources}
    return SimpleNamespace(progress=lambda: SimpleNamespace(json=lambda: json.dumps(document)))


def test_only_each_querys_newest_heartbeat_waits():
    """Older heartbeats are dropped while one is being written."""
    from forebay_spark.heartbeats import HeartbeatListener

    written: list[tuple[str, int]] = []
    go_on = threading.Event()

    def beat(query: str, as_of_ms: int, batch: int) -> None:
        go_on.wait(10)
        written.append((query, as_of_ms))

    listener = HeartbeatListener(beat)
    for at_ms in range(1_000, 6_000, 1_000):
        for query in ("a", "b"):
            listener.onQueryIdle(idle(query, at_ms))
    go_on.set()
    wait_until(lambda: {("a", 5_000), ("b", 5_000)} <= set(written), "the newest of both")
    assert len(written) <= 3, "one was being written, and one of each waited"


def test_batch_that_left_a_backlog_shows_that_the_query_runs():
    """It claims no age, and takes none away from a heartbeat that waits."""
    from forebay_spark.heartbeats import HeartbeatListener

    written: list[int | None] = []
    go_on = threading.Event()

    def beat(query: str, as_of_ms: int | None, batch: int) -> None:
        go_on.wait(10)
        written.append(as_of_ms)

    listener = HeartbeatListener(beat)
    listener.onQueryProgress(progress("a", 1_000, 0, {"endOffset": 1, "latestOffset": 3}))
    wait_until(lambda: not listener._pending, "the first is being written")
    listener.onQueryProgress(progress("a", 1_000, 1, {"endOffset": 3, "latestOffset": 3}))
    listener.onQueryProgress(progress("a", 1_000, 2, {"endOffset": 2, "latestOffset": 3}))
    go_on.set()
    wait_until(lambda: written == [None, 1_000], "both heartbeats")


def test_failed_heartbeat_blocks_no_other():
    from forebay_spark.heartbeats import HeartbeatListener

    written: list[int] = []

    def beat(query: str, as_of_ms: int, batch: int) -> None:
        written.append(as_of_ms)
        if len(written) == 1:
            raise OSError("the log is away")

    listener = HeartbeatListener(beat)
    for at_ms in (1_000, 2_000):
        listener.onQueryIdle(idle("a", at_ms))
        wait_until(lambda: written[-1:] == [at_ms], "a heartbeat")  # noqa: B023


def test_a_heartbeat_that_keeps_failing_is_reported_once(caplog):
    from forebay_spark.heartbeats import HeartbeatListener

    tried: list[int] = []

    def beat(query: str, as_of_ms: int, batch: int) -> None:
        tried.append(as_of_ms)
        if as_of_ms < 4_000:
            raise BatchConflict("two queries write as 'a'")
        if as_of_ms == 5_000:
            raise OSError("the log is away")

    listener = HeartbeatListener(beat)
    for at_ms in range(1_000, 6_000, 1_000):
        listener.onQueryIdle(idle("a", at_ms))
        wait_until(lambda: tried[-1:] == [at_ms], "a heartbeat")  # noqa: B023
    wait_until(lambda: "the log is away" in caplog.text, "another reason")
    assert len(caplog.records) == 2
    assert caplog.text.count("two queries write as 'a'") == 1


KAFKA = {"in": {"0": 5, "1": 7}}


@pytest.mark.parametrize(
    ("end", "latest", "nothing_left"),
    [
        (3, 3, True),
        (2, 3, False),
        (4, 3, False),
        ("x", "x", True),
        ({"logOffset": 2}, {"logOffset": 1}, False),
        (KAFKA, None, False),
        (KAFKA, KAFKA, True),
        (KAFKA, {"in": {"0": 5, "1": 6}}, True),
        (KAFKA, {"in": {"0": 6, "1": 1}}, False),
        (KAFKA, {"in": {"0": 5, "2": 1}}, False),
        (KAFKA, {"other": {"0": 1}}, False),
        (KAFKA, {"in": 5}, False),
        ({"in": {"0": "9"}}, {"in": {"0": "10"}}, False),
        ({"in": {"0": "9"}}, {"in": {"0": 8}}, False),
        (5, {}, False),
    ],
)
def test_batch_at_the_latest_offset_left_no_backlog(end, latest, nothing_left):
    from forebay_spark.heartbeats import left_no_backlog

    source = {"endOffset": end, "latestOffset": latest}
    assert left_no_backlog([source]) is nothing_left
    up_to_date = {"endOffset": 1, "latestOffset": 1}
    assert left_no_backlog([up_to_date, source]) is nothing_left
