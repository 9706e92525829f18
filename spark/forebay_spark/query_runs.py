"""The streaming queries of this process that write to stores."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_spark.store_writer import StoreWriter
import json
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener, QueryProgressEvent, StreamingQueryListener

from forebay_spark.heartbeats import HeartbeatListener
from forebay_spark.store_writer import beat_run


class SessionListeners:
    """Listens to the queries of sessions, and writes the heartbeats of all that they write to stores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listening: dict[str, tuple[SparkSession, HeartbeatListener]] = {}
        """By the session's own id: Python has several objects for a session."""

    def of(self, session: SparkSession) -> HeartbeatListener:
        """The listener of a session, which is set to report idle queries every second."""
        session_id = str(session._jsparkSession.sessionUUID())
        with self._lock:
            self._forget_stopped(session)
            if session_id not in self._listening:
                # With the default, an idle stream's age would grow to 10 s.
                session.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1000")
                listener = HeartbeatListener(_beat, _keep_house)
                session.streams.addListener(listener)
                self._listening[session_id] = session, listener
            return self._listening[session_id][1]

    def sessions(self) -> list[SparkSession]:
        """The sessions that are listened to."""
        return [session for session, _ in self._listening.values()]

    def _forget_stopped(self, session: SparkSession) -> None:
        """Leave out the sessions of a context before this one's: a process has one at a time."""
        context = session.sparkContext
        self._listening = {key: one for key, one in self._listening.items() if one[0].sparkContext is context}


SESSION_LISTENERS = SessionListeners()


def _beat(query_id: str, as_of_ms: int | None, batch_id: int) -> None:
    run = QUERY_RUNS.of(query_id)
    if run is not None:
        beat_run(run, as_of_ms, batch_id)


def _keep_house(query_id: str) -> None:
    run = QUERY_RUNS.of(query_id)
    if run is not None:
        for log in {writer.log for writer in run.writers.values()}:
            log.compaction.begin_if_due()


class QueryListener(StreamingQueryListener):
    """Like Spark's own, except in how progress reaches Python."""

    # Private, but addListener uses it; if it ever stops, progress arrives as for any listener.
    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_jlistenerobj"):
            assert SparkContext._jvm is not None
            self._jlistenerobj = SparkContext._jvm.PythonStreamingQueryListenerWrapper(_ProgressAsJson(self))
        return self._jlistenerobj


class _ProgressAsJson(JStreamingQueryListener):
    """Called by the JVM."""

    def onQueryProgress(self, jevent: Any) -> None:
        """After a batch."""
        progress = json.loads(jevent.progress().json())
        self.pylistener.onQueryProgress(QueryProgressEvent.fromJson({"progress": progress}))


Output = tuple[str, str, str]
"""The changelog's URL, the topic and the writer's name."""


@dataclass
class QueryRun:
    """One run of a query, from its start to its end, and what it writes.

    ``as_of_limit_ms`` is when it was started, if it asks its sources for their offsets only then; negative if that
    is not known.
    """

    query_id: str
    run_id: str
    as_of_limit_ms: int | None = None
    holds_records_back: bool = False
    """Whether it may be idle although its sources have something new."""
    writers: dict[Output, StoreWriter] = field(default_factory=dict)
    written: dict[Output, int] = field(default_factory=dict)
    """The last batch that was written."""
    failed: dict[Output, int] = field(default_factory=dict)
    """The batch that could not be written and was not repeated since."""


class QueryRuns:
    """By query, its newest run: one started again, perhaps with another sink, takes the place of what it was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, QueryRun] = {}

    def of(self, query_id: str) -> QueryRun | None:
        """The newest run of a query that has written something, or that is to."""
        return self._runs.get(query_id)

    def enter(self, query_id: str, run_id: str) -> tuple[QueryRun, bool]:
        """The run of this id, and whether it is new."""
        with self._lock:
            known = self._runs.get(query_id)
            if known is not None and known.run_id == run_id:
                return known, False
            self._runs[query_id] = run = QueryRun(query_id, run_id)
            return run, True


QUERY_RUNS = QueryRuns()
