"""Heartbeats from a streaming query's own progress: how old the source's state in the log is."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQueryManager

from forebay.errors import ForebayError, SinkError
from forebay.logs import LogThrottle
from forebay_spark.plan import complete_mode, holds_records_back
from forebay_spark.store_writer import QUERY_RUNS, QueryRun, beat_run

log = logging.getLogger(__name__)

Beat = Callable[[str, int | None, int], None]


class HeartbeatListener:
    """Calls ``beat(query_id, as_of_ms, batch_id)`` after every batch, and while a query is idle.

    ``as_of_ms`` is when the trigger began, before it asked the source for its offsets: everything the source had
    by then is in the log. It is None if the batch left a backlog.

    Spark delivers events one by one. Heartbeats are written in a separate thread, only the newest of each query: a
    busy driver must not write outdated ones one after another.

    The JVM calls it with its own events. Why: a listener of PySpark's gets progress that is read member by member,
    each by a call to the JVM. With five queries that took a quarter of all the processor time of a job in local
    mode.
    """

    class Java:
        """What of the JVM's it implements."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._lock = threading.Lock()
        self._pending: dict[str, tuple[int | None, int]] = {}
        self._logged = LogThrottle()
        # Its thread is joined when the process ends, so the last heartbeat is written.
        self._writer = ThreadPoolExecutor(1, "forebay-heartbeats")

    @property
    def _jlistener(self) -> Any:
        """What PySpark adds to a session."""
        assert SparkContext._jvm is not None
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:
        """Spark calls this before it asks the sources for their offsets."""
        _STARTED[str(event.id())] = {str(event.runId()): epoch_ms_of(event.timestamp())}

    def onQueryProgress(self, event: Any) -> None:
        """After a batch."""
        progress = json.loads(event.progress().json())
        as_of_ms = epoch_ms_of(progress["timestamp"]) if left_no_backlog(progress["sources"]) else None
        self._enqueue(progress["id"], as_of_ms, progress["batchId"])

    def onQueryIdle(self, event: Any) -> None:
        """There was nothing new at the trigger."""
        self._enqueue(str(event.id()), epoch_ms_of(event.timestamp()), -1)

    def onQueryTerminated(self, event: Any) -> None:
        """A stopped query sends no heartbeats, and its age grows."""

    def _enqueue(self, query_id: str, as_of_ms: int | None, batch_id: int) -> None:
        with self._lock:
            waiting = self._pending.get(query_id)
            self._pending[query_id] = (waiting[0] if waiting and as_of_ms is None else as_of_ms, batch_id)
        if waiting is None:
            # When the process ends, nothing more is accepted.
            with contextlib.suppress(RuntimeError):
                self._writer.submit(self._write, query_id)

    def _write(self, query_id: str) -> None:
        with self._lock:
            as_of_ms, batch_id = self._pending.pop(query_id)
        try:
            self._beat(query_id, as_of_ms, batch_id)
        except Exception as error:
            if self._logged.allow(f"{query_id}: {error}"):
                unforeseen = not isinstance(error, ForebayError)
                log.error(
                    "the heartbeat of query %s could not be written, which is tried again: %s",
                    query_id,
                    error,
                    exc_info=unforeseen and error,
                )


def left_no_backlog(sources: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a batch took all that its sources had when it began, by their members of its progress.

    False for a source that does not report it.
    """
    offsets = [(source["endOffset"], source.get("latestOffset")) for source in sources]
    return all(latest is not None and _reached(end, latest) for end, latest in offsets)


def _reached(end: Any, latest: Any) -> bool:
    """Whether an end is at least the latest offset.

    In real-time mode it may be further: a batch goes on with what arrives after the source was asked. Only Kafka's
    offsets, by topic and partition, can be compared.
    """
    if end == latest:
        return True
    try:
        of_topics = [(end[topic], partitions) for topic, partitions in latest.items()]
        offsets = [(ends[at], offset) for ends, partitions in of_topics for at, offset in partitions.items()]
        return bool(offsets) and all(isinstance(offset, int) and at >= offset for at, offset in offsets)
    except (AttributeError, KeyError, TypeError):
        return False


def epoch_ms_of(timestamp: str) -> int:
    """Epoch milliseconds of a progress' ISO 8601 timestamp."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


_STARTED: dict[str, dict[str, int]] = {}
"""By query and its newest run, when that was started, before it asked its sources for anything."""
_LISTENING: set[str] = set()
"""The sessions that have a listener, by their own ids: Python has several objects for a session."""
_LOCK = threading.Lock()


def listen_to(session: Any) -> None:
    """Listen to the queries of a session of the JVM's, which reports idle ones every second from now on.

    However many sinks write from a session, it has one listener. Why: a sink has no end at which it could take one
    of its own out of its session again.
    """
    session_id = str(session.sessionUUID())
    with _LOCK:
        if session_id not in _LISTENING:
            # With the default, an idle stream's age would grow to 10 s.
            session.conf().set("spark.sql.streaming.noDataProgressEventInterval", "1000")
            StreamingQueryManager(session.streams()).addListener(HeartbeatListener(_beat))  # type: ignore[arg-type]
            _LISTENING.add(session_id)


def follow(run: QueryRun, execution: Any) -> None:
    """Have heartbeats for a run, whichever session it was started in; raises ``SinkError`` for its output mode."""
    if execution.outputMode().toString() == "Complete":
        raise SinkError(complete_mode(run.query_id))
    listen_to(execution.sparkSession())
    run.holds_records_back = holds_records_back(execution.analyzedPlan())
    if execution.trigger().toString() == "AvailableNowTrigger":
        run.as_of_limit_ms = _STARTED.get(run.query_id, {}).get(run.run_id, -1)
    run.is_followed = True


def _beat(query_id: str, as_of_ms: int | None, batch_id: int) -> None:
    run = QUERY_RUNS.get(query_id)
    if run is not None and run.is_followed:
        try:
            beat_run(run, as_of_ms, batch_id)
        finally:
            for log in {writer.log for writer in run.writers.values()}:
                log.compaction.begin_if_due()
