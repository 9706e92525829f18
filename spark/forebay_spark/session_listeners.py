"""The listeners of Spark's sessions: one each, however many sinks write from a session.

Why shared: a sink has no end at which it could take a listener of its own out of its session again.
"""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession

from forebay_spark.heartbeats import HeartbeatListener
from forebay_spark.query_runs import QUERY_RUNS
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
