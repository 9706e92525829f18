"""A tap beside a running query, with a log that changes under it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from forebay_changelog import Wake
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_tap.store_tap import StoreTap
from forebay_tap.tap import SourceEnds, StateTap
from tests.support.cluster import wait_until
from tests.support.running_query import RunningQuery, content, store

NAME = "aggregation-changelog"
SPEC = store(spark_state={"fields": [{"name": "count", "position": 0, "function": "count"}]})


@pytest.fixture
def changelog(tmp_path):
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure(SPEC)
    return changelog


@pytest.fixture
def query(tmp_path, spark_4_0):
    return RunningQuery(spark_4_0.path(NAME), tmp_path / "checkpoint")


@contextlib.contextmanager
def following(query: RunningQuery, changelog: SqliteChangelog) -> Iterator[None]:
    stopping, failures = Wake(), []

    def run(tap: StateTap) -> None:
        try:
            tap.run()
        except Exception as error:
            failures.append(error)

    tap = StateTap(str(query.path), [SPEC], changelog, SourceEnds(None), poll_interval_ms=20, stopping=stopping)
    thread = threading.Thread(target=run, args=[tap])
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert failures == []


def counts(written: Any, batch: int) -> dict[str, Any]:
    """What the log is to have of the state that a batch left."""
    state = written.expected(NAME)[batch]
    return {key[1:-1]: {"count": value[0]} for key, value in state.items() if key != "[null]"}


def test_reset_log_is_filled_while_the_query_is_idle(spark_4_0, query, changelog):
    query.end(0)
    with following(query, changelog):
        wait_until(lambda: content(changelog, SPEC) == counts(spark_4_0, 0), "the first copy")
        changelog.reset(SPEC)
        wait_until(lambda: content(changelog, SPEC) == counts(spark_4_0, 0), "a copy to the new log")


def test_batch_that_is_run_again_is_read_again_while_idle(query, changelog):
    query.end(0)
    with following(query, changelog):
        wait_until(lambda: beat(changelog) is not None and beat(changelog).batch_id == 0, "the first copy")
        first = beat(changelog)
        query.run_again(0)
        wait_until(lambda: beat(changelog).query_id != first.query_id, "another copy")


def test_emptied_commits_are_waited_for(spark_4_0, query, changelog, caplog):
    """As after a query was set back to before its first batch."""
    query.end(0)
    with following(query, changelog):
        wait_until(lambda: content(changelog, SPEC) == counts(spark_4_0, 0), "the first copy")
        (query.path / "commits/0").unlink()
        wait_until(lambda: "has no batch that has ended" in caplog.text, "the tap waits")
        query.end_all()
        wait_until(lambda: content(changelog, SPEC) == counts(spark_4_0, query.batches[-1]), "the query goes on")


def test_commits_emptied_under_a_copy_are_waited_for(spark_4_0, query, changelog, caplog, monkeypatch):
    query.end(0)
    begin = StoreTap.begin

    def emptied(tap: StoreTap, newest: int) -> None:
        monkeypatch.setattr(StoreTap, "begin", begin)
        (query.path / "commits/0").unlink()
        begin(tap, newest)

    monkeypatch.setattr(StoreTap, "begin", emptied)
    with following(query, changelog):
        wait_until(lambda: "the checkpoint is opened anew" in caplog.text, "the tap waits")
        query.end(0)
        wait_until(lambda: content(changelog, SPEC) == counts(spark_4_0, 0), "the query goes on")


def beat(changelog: SqliteChangelog) -> Any:
    return changelog.last_heartbeat(SPEC.topic, SPEC.name)
