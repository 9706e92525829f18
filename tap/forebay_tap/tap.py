"""Follows a checkpoint: each batch that ends goes to the logs of the stores, in order."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from forebay.clock import epoch_ms
from forebay.errors import ChangelogUnreachable
from forebay.logs import LogThrottle
from forebay.store_spec import StoreSpec
from forebay_changelog import Changelog, Wake
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.errors import (
    CheckpointError,
    CheckpointMissing,
    CheckpointUnreachable,
    VersionNotCommitted,
)
from forebay_tap.spark_checkpoint.files import LocalFiles
from forebay_tap.spark_checkpoint.logs import Offsets
from forebay_tap.store_tap import StoreTap

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
_BEAT_MS = 1_000
_CHECK_RETAINED_MS = 10_000
_RETRY_S = 1.0
_LOCAL_INTERVAL_S = 0.02
"""How often to look for the end of the next batch where files are local."""
_LOCAL_POLLS = 50
"""How often until what is due between two batches is done."""
_WARN_AT = 0.5
"""The tap warns once it is behind by this share of the batches that Spark retains."""
_MAX_OBSERVATIONS = 256
Ends = Mapping[tuple[str, int], int]
"""The next offset that each partition of each topic will have."""
EndsReader = Callable[[frozenset[str]], Ends | None]
"""Reads the ends of all partitions of some Kafka topics; None if they cannot be read now."""


@dataclass
class SourceEnds:
    """The recent observations of the ends of a query's Kafka sources, by which its state has an age.

    A batch's offsets say how far its sources were read, not when these had nothing more. Once a batch has read up
    to the ends that were seen at some time, the state has everything from before that time. ``read`` is None if
    nobody said where they are. ``clock_ms`` is the wall clock.
    """

    read: EndsReader | None
    clock_ms: Callable[[], float] = epoch_ms
    _observed: deque[tuple[int, Ends]] = field(default_factory=deque)

    def observe(self, offsets: Offsets) -> None:
        """Look at the ends of the sources that a batch had, which is the newest."""
        read_to = offsets.kafka_offsets()
        if self.read is None or read_to is None:
            return
        # Before they are asked for: what comes meanwhile may be missing.
        now_ms = int(self.clock_ms())
        ends = self.read(frozenset(topic for topic, _ in read_to))
        if ends is None:
            return
        if self._observed and self._observed[-1][1] == ends:
            self._observed[-1] = (now_ms, ends)
            return
        self._observed.append((now_ms, ends))
        if len(self._observed) > _MAX_OBSERVATIONS:
            # Thinned out: an age may be overstated, never understated.
            kept = [item for at, item in enumerate(self._observed) if at % 2 or at == len(self._observed) - 1]
            self._observed = deque(kept)

    def as_of_ms(self, offsets: Offsets) -> int | None:
        """The newest time of which the batch has read all that its sources had; None if that is not known."""
        read_to = offsets.kafka_offsets()
        if read_to is None:
            return None
        for observed_ms, ends in reversed(self._observed):
            if all(read_to.get(partition, 0) >= end for partition, end in ends.items()):
                return observed_ms
        return None


class StateTap:
    """Keeps the logs of some stores at the state of one query.

    ``stopping`` ends ``run``, at the end of a batch. Errors that pass by themselves are waited for and logged
    once; any other is raised: ``CheckpointError``, ``ChangelogError`` or ``TopologyError``.
    """

    def __init__(
        self,
        url: str,
        specs: Sequence[StoreSpec],
        changelog: Changelog,
        ends: SourceEnds,
        *,
        poll_interval_ms: int,
        take_over: bool = False,
        stopping: Wake | None = None,
        clock_ms: Callable[[], float] = epoch_ms,
    ) -> None:
        self._url = url
        self._specs = specs
        self._changelog = changelog
        self._ends = ends
        self._poll_interval_s = poll_interval_ms / 1000
        self._take_over = take_over
        self._stopping = stopping or Wake()
        self._clock_ms = clock_ms
        self._logged = LogThrottle()
        self._beat_due_ms = 0.0
        self._retained_due_ms = 0.0
        self._was_behind = False

    def run(self) -> None:
        """Follow until it is stopped."""
        while not self._stopping.is_set():
            checkpoint = self._opened()
            if checkpoint is None:
                continue
            try:
                self._follow(checkpoint)
            except VersionNotCommitted as error:
                log.warning("the checkpoint is opened anew, as it was set back: %s", error)
                self._stopping.wait(_RETRY_S)

    def bootstrap(self, on_written: Callable[[int], None] = lambda records: None) -> int:
        """Make the logs equal to the state as it is now; returns the batch that left it so.

        ``on_written`` is called with how many records were written each time. Raises ``VersionNotCommitted`` if no
        batch has ended.
        """
        checkpoint = Checkpoint.open(self._url)
        newest = checkpoint.newest_batch()
        for tap in self._taps(checkpoint, on_written):
            tap.begin(newest)
            while tap.batch is not None and tap.batch < newest:
                tap.follow(tap.batch + 1)
        return newest

    def _opened(self) -> Checkpoint | None:
        """The checkpoint, once a batch of it has ended."""
        try:
            checkpoint = Checkpoint.open(self._url)
            if checkpoint.batches():
                return checkpoint
            reason = f"{checkpoint.files.url} has no batch that has ended."
        except (CheckpointMissing, CheckpointUnreachable) as error:
            reason = str(error)
        if self._logged.allow(reason):
            log.warning("waiting for the checkpoint: %s", reason)
        self._stopping.wait(_RETRY_S)
        return None

    def _taps(
        self, checkpoint: Checkpoint, on_written: Callable[[int], None] = lambda records: None
    ) -> list[StoreTap]:
        options: dict[str, Any] = {"take_over": self._take_over, "on_written": on_written}
        return [StoreTap(checkpoint, spec, self._changelog, self._clock_ms, **options) for spec in self._specs]

    def _follow(self, checkpoint: Checkpoint) -> None:
        """Follow one history of the checkpoint; returns when it is stopped or set back."""
        taps = self._taps(checkpoint)
        for tap in taps:
            self._patiently(self._begin, checkpoint, tap)
        while not self._stopping.is_set():
            batch = min((tap.batch for tap in taps if tap.batch is not None), default=-1)
            if not self._patiently(checkpoint.is_committed, batch + 1):
                if not self._idle(checkpoint, taps, batch):
                    log.warning("batch %d is no longer what was read: it was set back, repeated or purged", batch)
                    return
                self._wait(checkpoint, batch + 1)
                continue
            if not all(self._patiently(tap.has_batch) for tap in taps):
                log.warning("batch %d is another than the log has: the query was set back", batch)
                return
            for tap in taps:
                if tap.batch == batch:
                    self._patiently(tap.follow, batch + 1)
            self._warn_if_behind(checkpoint, batch + 1)
            self._idle(checkpoint, taps, batch + 1)

    def _wait(self, checkpoint: Checkpoint, batch: int) -> None:
        """Return soon after a batch has ended, and from time to time for what else may be due."""
        if not isinstance(checkpoint.files, LocalFiles):
            self._stopping.wait(self._poll_interval_s)
            return
        for _ in range(_LOCAL_POLLS):
            if self._stopping.wait(_LOCAL_INTERVAL_S) or self._patiently(checkpoint.is_committed, batch):
                return

    def _idle(self, checkpoint: Checkpoint, taps: list[StoreTap], batch: int) -> bool:
        """What is due between two batches: expiries, and heartbeats about once a second.

        Returns whether the batch is still in the checkpoint as it was read. That is looked up as often as
        heartbeats are due, as is whether the logs are still the same.
        """
        for tap in taps:
            self._patiently(tap.expire)
        now_ms = self._clock_ms()
        if now_ms < self._beat_due_ms:
            return True
        self._beat_due_ms = now_ms + _BEAT_MS
        if not self._patiently(checkpoint.is_unchanged, batch):
            return False
        for tap in taps:
            self._patiently(tap.keep_log)
        self._beat(checkpoint, taps, batch)
        return True

    def _beat(self, checkpoint: Checkpoint, taps: list[StoreTap], batch: int) -> None:
        offsets = None
        # Without them it ages until the next batch.
        with contextlib.suppress(CheckpointError):
            offsets = checkpoint.ended_offsets(batch)
        as_of_ms = None if offsets is None else self._ends.as_of_ms(offsets)
        for tap in taps:
            self._patiently(tap.beat, as_of_ms)
        if offsets is not None:
            self._ends.observe(offsets)

    def _warn_if_behind(self, checkpoint: Checkpoint, batch: int) -> None:
        now_ms = self._clock_ms()
        if now_ms >= self._retained_due_ms and self._patiently(checkpoint.is_committed, batch + 1):
            self._retained_due_ms = now_ms + _CHECK_RETAINED_MS
            batches = self._patiently(checkpoint.batches) or [batch]
            retained, behind = batches[-1] - batches[0] + 1, batches[-1] - batch
            is_behind = behind > _WARN_AT * retained
            if is_behind and not self._was_behind:
                log.warning(
                    "the tap is %d batches behind, of %d that Spark retains (minBatchesToRetain): what is deleted "
                    "before it is read means copying the whole state",
                    behind,
                    retained,
                )
            self._was_behind = is_behind

    def _begin(self, checkpoint: Checkpoint, tap: StoreTap) -> None:
        tap.begin(checkpoint.newest_batch())

    def _patiently(self, act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Do it again for as long as a log or the checkpoint cannot be reached."""
        while True:
            try:
                return act(*arguments, **named)
            except (ChangelogUnreachable, CheckpointUnreachable) as error:
                if self._stopping.is_set():
                    raise
                if self._logged.allow(str(error)):
                    log.warning("the tap waits, and tries again: %s", error)
                self._stopping.wait(_RETRY_S)
