"""Keys while they are followed: the stream in hand, what was last seen, and when to connect again."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar, cast

from forebay.errors import Problem, UnknownKey
from forebay.lag import UNKNOWN_LAG, Lag
from forebay.wire.answers import OF_THE_SERVER, ReplicaInfo
from forebay.wire.key_changes import is_transient
from forebay.wire.server_sent_events import Event, EventReader
from forebay_client import fork_safety
from forebay_client.exchange import MALFORMED, Close, Opened, Pause, Plan, Receive, mismatched
from forebay_client.read_plans import ChangesRequest, ClientReads
from forebay_client.request_identity import Requested, change_mismatch
from forebay_client.results import Change, change_of
from forebay_client.store_changes import StoreChange, StoreChangesRequest, StoreLag

C = TypeVar("C")
"""What following yields."""

_MIN_PAUSE_S = 0.1
_MAX_PAUSE_S = 1.0


class Following(Generic[C]):
    """A stream of changes, of one key or of many, that survives its connections.

    ``lag`` is of the newest event that states one, whether or not it was yielded.
    """

    def __init__(self, reads: ClientReads, wanted: ChangesRequest | StoreChangesRequest) -> None:
        self._reads = reads
        self._request = wanted
        self._opened: Opened | None = None
        self._server = 0
        """Where the stream is from."""
        self._requested = Requested(wanted.store)
        self._has_mismatched = False
        self._reader = EventReader()
        self._events: deque[Event] = deque()
        self._last_event_id: str | None = None
        self._began = self._leaving = self._closed = False
        self._pause_s = _MIN_PAUSE_S
        self.lag: Lag = UNKNOWN_LAG
        fork_safety.renew_on_fork(self)

    def on_fork(self) -> None:
        """The stream in hand is the parent's."""
        fork_safety.leave_to_parent(self._opened)
        self._opened = None

    def _next_change(self) -> Plan[C | None]:
        """The next change, None once it is closed."""
        while not self._closed:
            if self._events:
                event = self._events.popleft()
                change = self._understood(event)
                if isinstance(change, str):
                    yield from self._on_mismatch(change)
                    continue
                self._take(event, change)
                if not isinstance(change, ReplicaInfo | StoreLag) or self._request.lag_interval_ms is not None:
                    return cast("C", change)
            elif self._leaving:
                self._leaving = False
                yield from self._leave()
            elif self._opened is not None:
                yield from self._receive(self._opened)
            else:
                problem = yield from self._open()
                if problem is not None:
                    return cast("C", problem)
        yield from self._close()
        return None

    def _close(self) -> Plan[None]:
        opened, self._opened = self._opened, None
        if opened is not None:
            yield Close(opened)

    def _understood(self, event: Event) -> Change | StoreChange | str:
        """The change in an event, or how the event belongs to another stream."""
        try:
            if isinstance(self._request, StoreChangesRequest):
                found = self._request.change_of(event, decimals=self._reads.exchange.decimals)
                return self._request.mismatch(found) or found
            change = change_of(event, decimals=self._reads.exchange.decimals)
            return change_mismatch(self._requested, change) or change
        except MALFORMED:
            return "an event that cannot be read"

    def _on_mismatch(self, mismatch: str) -> Plan[None]:
        """Connect anew, unless that was done for this already; raises ``AnswerMismatch``."""
        self._events.clear()
        has_mismatched, self._has_mismatched = self._has_mismatched, True
        yield from self._leave()
        if has_mismatched:
            self._has_mismatched = False
            raise mismatched(f"The stream of {self._request.name}", mismatch)

    def _take(self, event: Event, change: Change | StoreChange) -> None:
        if not isinstance(change, ReplicaInfo | StoreLag):
            self._has_mismatched = False
        if event.id is not None:
            self._last_event_id = event.id
        if change.lag is not None:
            self.lag = change.lag
        self._reads.note(self._request.store, change)
        self._leaving = False
        if not isinstance(change, Problem) or isinstance(change, UnknownKey):
            self._pause_s = _MIN_PAUSE_S
        elif change.status in OF_THE_SERVER:
            # Another server may see more of the workers.
            self._leaving = self._reads.exchange.several

    def _receive(self, opened: Opened) -> Plan[None]:
        reply = yield Receive(opened)
        if isinstance(reply, bytes) and reply:
            self._events.extend(self._reader.feed(reply))
            return
        yield from self._leave()

    def _leave(self) -> Plan[None]:
        yield from self._close()
        self._reads.exchange.turn_from(self._server)
        yield from self._pause()

    def _open(self) -> Plan[Problem | None]:
        """Connect; the problem if there is one that may pass, raised if it is the first that is heard."""
        try:
            opened = yield from self._reads.open(self._request, self._last_event_id)
            self._opened, self._server, self._requested = opened
        except Problem as problem:
            if not self._began or not is_transient(problem):
                raise
            yield from self._pause()
            return problem
        self._began = True
        self._reader = EventReader()
        return None

    def _pause(self) -> Plan[None]:
        if self._closed:
            return
        yield Pause(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
