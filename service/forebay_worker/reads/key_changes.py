"""Changes of one key at one replica, conflated: the current value, then the newest at each change."""

from __future__ import annotations

import asyncio
import hashlib

from forebay.clock import boot_ms
from forebay.codecs.values import without_headers
from forebay.errors import LogDiverged, PositionOfAnotherLog, Problem
from forebay.stored_values import STAMP_SIZE
from forebay.wire.key_changes import KEEP_ALIVE_MS, is_transient, require_followed
from forebay.wire.parameters import ReadParameters
from forebay.wire.server_sent_events import Event
from forebay_web.event_streams import Events, problem_event
from forebay_web.follower_wakeups import wait_until
from forebay_web.limits import Limit, Peer
from forebay_worker.reads.admission import Admission, Refused, bounded_wait
from forebay_worker.reads.keys import Reads
from forebay_worker.reads.values import key_document
from forebay_worker.tasks.replica import Replica

_MIN_BETWEEN_CHANGES_MS = 50.0
"""Twenty values a second are more than anyone can see; the limit keeps a hot key from taking the processor from
reads."""
_CHECK_MS = 1_000.0
"""How often an idle stream checks whether its replica may still answer; that reads no store."""


class KeyChanges:
    """One client's stream of a key's changes.

    It keeps no value, only a digest of the last one sent: the next is read once the client has received that one,
    so a slow client costs no memory. ``wait_ms`` is how long the replica may take to meet the bounds, initially
    and later; ``resuming`` means that ``min_position`` was sent automatically when the client reconnected.
    """

    def __init__(
        self,
        admission: Admission,
        reads: Reads,
        waiting: Limit,
        store: str,
        segment: bytes,
        parameters: ReadParameters,
        wait_ms: float,
        resuming: bool,
        peer: Peer,
    ) -> None:
        self._admission = admission
        self._reads = reads
        self._waiting = waiting
        self._spec = parameters.written(admission.spec(store))
        require_followed(self._spec)
        self._key = reads.key_forms(store, parameters)(segment)
        self._partition = admission.agreed_partition(self._spec, self._key.partition, parameters.partition)
        self._segment = segment
        self._parameters = parameters
        self._wait_ms = wait_ms
        self._resuming = resuming
        self._peer = peer
        self._woken = asyncio.Event()
        self._stale = True
        """Whether the key may have changed since it was read."""
        self._digest: bytes | None = None
        self._read_at = -1
        self._role = ""
        now = boot_ms()
        self._sent_boot_ms = self._changed_boot_ms = now - _MIN_BETWEEN_CHANGES_MS
        self._lag_due_boot_ms = now

    async def events(self) -> Events:
        """The events, until the replica may no longer answer; the last one is then a problem.

        Raises ``Problem`` if the request is at fault.
        """
        try:
            replica = self._admission.replica(self._spec, self._partition)
            with replica.key_watchers.watching(self._key.stored, self._on_change):
                self._store = replica.view.store
                while True:
                    event = await self._due(replica)
                    if event is not None or boot_ms() - self._sent_boot_ms >= KEEP_ALIVE_MS:
                        self._sent_boot_ms = boot_ms()
                        yield event
                    await self._pause()
        except Refused as refused:
            yield problem_event(refused.with_replica_info())
        except PositionOfAnotherLog as problem:
            if not self._resuming:
                raise
            yield problem_event(problem, event_id="")
        except Problem as problem:
            if not is_transient(problem):
                raise
            yield problem_event(problem)

    async def _due(self, replica: Replica) -> Event | None:
        """The next event, as soon as the replica may answer within the wait; raises ``Problem`` or ``Refused``."""
        until = boot_ms() + self._wait_ms
        with bounded_wait(self._waiting, self._peer) as pause:
            while True:
                if self._spec.ttl_ms is not None and boot_ms() >= self._lag_due_boot_ms:
                    # No record tells that a value has expired.
                    self._stale = True
                if self._stale:
                    await self._reads.bring(self._spec.name, self._segment, self._parameters)
                try:
                    return self._lookup(replica)
                except Refused as refused:
                    if not refused.may_wait or boot_ms() >= until:
                        raise
                await pause()

    def _lookup(self, replica: Replica) -> Event | None:
        self._require_same(replica)
        lag_due = boot_ms() >= self._lag_due_boot_ms
        progress = replica.view.progress
        # A lag event describes the position in it: nothing may have been applied unnoticed in between.
        behind = progress.position != self._read_at or progress.applying_to != self._read_at
        if self._stale or (lag_due and behind):
            event = self._changed(replica)
            if event is not None:
                return event
        admitted = self._admission.admit(replica, self._parameters)
        if not lag_due and admitted.role == self._role:
            return None
        replica_info = self._admission.replica_info(admitted)
        self._note_sent(replica_info.source.role)
        return Event("lag", b"{%b}" % replica_info.members, replica_info.source.position)

    def _changed(self, replica: Replica) -> Event | None:
        """The key read again, None if unchanged since last sent."""
        read_at = replica.view.progress.position
        found = self._reads.lookup(replica, self._key, self._parameters)
        self._stale, self._read_at = False, read_at
        # Written again as it was is no change. A leading byte distinguishes an empty value from none.
        content = b"" if found.value is None else b"=" + self._shown(found.value[STAMP_SIZE:])
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest == self._digest:
            return None
        self._digest = digest
        self._changed_boot_ms = boot_ms()
        source = found.replica_info.source
        self._note_sent(source.role)
        document = key_document(self._key, found.value, self._spec.value_codec, found.replica_info.tail)
        return Event("absent" if found.value is None else "value", document, source.position)

    def _shown(self, stored: bytes) -> bytes:
        """Of a value what the client sees."""
        return stored if self._parameters.headers else without_headers(self._spec.value_codec, stored)

    def _note_sent(self, role: str) -> None:
        self._role = role
        self._lag_due_boot_ms = boot_ms() + self._parameters.lag_interval_ms

    def _require_same(self, replica: Replica) -> None:
        """Raise ``NotHostedHere`` or ``LogDiverged`` unless the same replica is still held."""
        held = self._admission.replica(self._spec, self._partition)
        if held is not replica or held.view.store is not self._store:
            raise LogDiverged("The replica was rebuilt; reconnect.", store=self._spec.name)

    def _on_change(self) -> None:
        self._stale = True
        self._woken.set()

    async def _pause(self) -> None:
        """Sleep until the key has changed and that may be sent, or something else is due."""
        check_boot_ms = boot_ms() + _CHECK_MS
        sendable_boot_ms = self._changed_boot_ms + _MIN_BETWEEN_CHANGES_MS
        if boot_ms() < sendable_boot_ms:
            await wait_until(asyncio.Event(), sendable_boot_ms)
        while not self._stale and boot_ms() < min(check_boot_ms, self._lag_due_boot_ms):
            self._woken.clear()
            await wait_until(self._woken, min(check_boot_ms, self._lag_due_boot_ms))
