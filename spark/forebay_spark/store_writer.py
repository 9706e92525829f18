"""What writes to a store's log under a name: its heartbeats, the continuity of its queries, and their runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from forebay.errors import ChangelogUnreachable, ForebayError, SinkError
from forebay.logs import LogThrottle
from forebay.position import Position, encode_position, later_position, log_digest
from forebay.store_spec import StoreSpec
from forebay.unproven import UnprovenRanges
from forebay_changelog import Changelog, Heartbeat
from forebay_changelog.due_compaction import DueCompaction
from forebay_spark.destinations import open_destination

log = logging.getLogger(__name__)

_PATIENCE_S = 120.0
"""How long a batch waits for its log: as long as Kafka's own producers do (``delivery.timeout.ms``)."""
_PAUSE_S = 1.0
Output = tuple[str, str, str]
"""The changelog's URL, the topic and the writer's name."""


@dataclass
class QueryRun:
    """One run of a query, from its start to its end, and what it writes."""

    query_id: str
    run_id: str
    is_followed: bool = False
    """Whether it has heartbeats, and what is below is known of it."""
    as_of_limit_ms: int | None = None
    """When it was started, if it asks its sources for their offsets only then; negative if that is not known."""
    holds_records_back: bool = False
    """Whether it may be idle although its sources have something new."""
    writers: dict[Output, StoreWriter] = field(default_factory=dict)
    written: dict[Output, int] = field(default_factory=dict)
    """The last batch that was written."""
    failed: dict[Output, int] = field(default_factory=dict)
    """The batch that could not be written and was not repeated since."""


QUERY_RUNS: dict[str, QueryRun] = {}
"""By query, its newest run: one started again, perhaps with another sink, takes the place of what it was."""
_LOCK = threading.Lock()


def query_run(query_id: str, run_id: str) -> QueryRun:
    """The run of this id, which is new unless it is its query's newest."""
    with _LOCK:
        run = QUERY_RUNS.get(query_id)
        if run is None or run.run_id != run_id:
            run = QUERY_RUNS[query_id] = QueryRun(query_id, run_id)
        return run


class SinkLog:
    """The changelog that a sink writes to, how far it has written each store's, and the compaction of all."""

    def __init__(self, changelog: Changelog, specs: Iterable[StoreSpec]) -> None:
        self.changelog = changelog
        self.destination = open_destination(changelog)
        self.compaction = DueCompaction(changelog, specs)
        self._lock = threading.Lock()
        self.positions: dict[str, str] = {}
        """By store, the token of the end of the last batch that was written."""

    def wrote(self, store: str, position: Position) -> None:
        """A batch of a store ends at a position; another query's newer batch may have been first."""
        with self._lock:
            newest = later_position(self.positions.get(store), encode_position(position))
            assert newest is not None
            self.positions[store] = newest


@dataclass
class StoreWriter:
    """A store's writer: the queries that write to its log under one name, one after another."""

    log: SinkLog
    spec: StoreSpec
    name: str
    begins_here: bool = False
    """Whether a query may go on from a checkpoint into a log that has nothing of it."""
    bootstraps: bool = False
    """Whether the log is then filled from the checkpoint first."""
    as_of_ms: dict[str, int] = field(default_factory=dict)
    """By query: a new one of the same writer inherits nothing from the old one."""
    _identities: dict[str, dict[int, str]] = field(default_factory=dict)
    """By query, those of the partitions' logs that it goes on in."""
    _unproven: dict[str, UnprovenRanges] = field(default_factory=dict)
    """By query, what the log cannot prove of its state since it was filled from its checkpoint."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def output(self) -> Output:
        """What identifies it among all that this process writes."""
        return self.log.changelog.url, self.spec.topic, self.name

    def check_continuity(self, query_id: str, *, continued: bool) -> None:
        """Raise ``SinkError`` if the log lacks what a query wrote before: unchanged keys would be missing.

        ``continued`` says whether the query has an earlier batch. Raises ``ChangelogError``.
        """
        if self.begins_here:
            return
        topic, changelog = self.spec.topic, self.log.changelog
        found, known = changelog.identities(topic), self._identities.get(query_id)
        if known is None and continued:
            if self.lacks(query_id):
                raise self._discontinued(
                    f"query {query_id} goes on from its checkpoint, but the log {topic!r} has nothing of it under "
                    f"the writer {self.name!r}"
                )
        elif known is not None and known != found:
            lost = [partition for partition, identity in known.items() if found.get(partition) != identity]
            what = f"the log {topic!r} was reset or replaced"
            if len(lost) < len(known):
                what = f"partition {', '.join(map(str, lost))} of the log {topic!r} was lost and recreated"
            raise self._discontinued(f"{what} while query {query_id} was running")
        self._identities[query_id] = found

    def identities(self, query_id: str) -> Mapping[int, str] | None:
        """Those of the logs that a query goes on in, by partition; None if it may go on in any."""
        return None if self.begins_here else self._identities.get(query_id)

    def lacks(self, query_id: str) -> bool:
        """Whether the log is known to have nothing of a query. Raises ``ChangelogError``."""
        has_written = self.log.changelog.has_written(self.spec.topic, writer=self.name, query_id=query_id)
        return has_written is False

    def goes_on(self, query_id: str) -> None:
        """Note that the log has what a query wrote, or would have written, before."""
        self._identities[query_id] = self.log.changelog.identities(self.spec.topic)

    def _unproven_of(self, query_id: str) -> UnprovenRanges:
        """What a copy of the query's checkpoint left unproven: that stays so, whatever the query writes."""
        if self.spec.spark_state is None or self.spec.store_kind.time_to_end_ms(self.spec) is None:
            return ()
        if query_id not in self._unproven:
            last = self.log.changelog.last_heartbeat(self.spec.topic, self.name)
            is_of_query = last is not None and last.query_id.partition("/")[0] == query_id
            self._unproven[query_id] = last.unproven if last is not None and is_of_query else ()
        return self._unproven[query_id]

    def _discontinued(self, finding: str) -> SinkError:
        return SinkError(
            f"{self.spec.name}: {finding}. Keys that do not change would be missing, and no lag would show it. "
            "Start the query with a new checkpoint and its source from the beginning, or, with sink.write, with "
            "bootstrap=True to fill the store from this checkpoint first, or with store_begins_here=True if the "
            "store is to contain only what changes from now on."
        )

    def patiently(self, act: Callable[[], None]) -> None:
        """Act for a batch; a short outage of the brokers must not end the query."""
        deadline, logged = time.monotonic() + _PATIENCE_S, LogThrottle()
        while True:
            try:
                return act()
            except ChangelogUnreachable as error:
                if time.monotonic() > deadline:
                    raise
                if logged.allow(str(error)):
                    log.warning("%s The batch waits for it.", error)
                time.sleep(_PAUSE_S)

    def beat(
        self,
        query_id: str,
        as_of_ms: int | None,
        batch_id: int,
        *,
        filling: bool = False,
        continued: bool = False,
    ) -> None:
        """Append a heartbeat to every partition, and record the log's position after it.

        ``as_of_ms`` is None if it did not advance. While the writer is ``filling`` the log, no reader is told that
        a key is missing. ``continued`` says whether the query has an earlier batch. Raises ``ChangelogError``, and
        ``SinkError`` as ``check_continuity`` does.
        """
        with self._lock:
            self.check_continuity(query_id, continued=continued)
            known = self.as_of_ms.get(query_id)
            if as_of_ms is not None:
                known = as_of_ms if known is None else max(as_of_ms, known)
            changelog = self.log.changelog
            offsets = changelog.append_heartbeat(
                self.spec.topic,
                writer=self.name,
                query_id=query_id,
                value=Heartbeat(known, query_id, batch_id, filling, unproven=self._unproven_of(query_id)).value(),
                identities=self.identities(query_id),
            )
            if known is not None:
                self.as_of_ms[query_id] = known
            digest = log_digest(changelog.identity(self.spec.topic))
            self.log.wrote(self.spec.name, Position(digest, offsets))


def beat_run(run: QueryRun, progress_ms: int | None, batch_id: int) -> None:
    """Append heartbeats to all that a run writes, after a batch (-1: idle), but to what lacks a batch.

    ``progress_ms`` is None if the batch left a backlog. Then, and of an idle run that may have records to come, a
    heartbeat says only that the run goes on. Raises the first error, after trying all.
    """
    as_of_ms = None if batch_id < 0 and run.holds_records_back else progress_ms
    if as_of_ms is not None and run.as_of_limit_ms is not None:
        as_of_ms = min(as_of_ms, run.as_of_limit_ms) if run.as_of_limit_ms >= 0 else None
    errors = []
    for output, writer in list(run.writers.items()):
        failed = run.failed.get(output)
        if failed is None or 0 <= batch_id < failed:
            try:
                writer.beat(run.query_id, as_of_ms, batch_id)
            except ForebayError as error:
                errors.append(error)
    if errors:
        raise errors[0]
