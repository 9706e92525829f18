"""A key while it is followed: the stream in hand, what was last seen, and when to connect again."""

from __future__ import annotations

from collections import deque

from forebay.client.exchange import Close, Opened, Pause, Plan, Receive
from forebay.client.reads import ChangesRequest, Reads
from forebay.client.results import Change, change_of
from forebay.errors import Problem, UnknownKey
from forebay.lag import UNKNOWN_LAG, Lag
from forebay.rest.answers import Provenance
from forebay.rest.changes import is_transient
from forebay.rest.events import Event, EventReader
from forebay.rest.statuses import OF_THE_SERVER

_LEAST_PAUSE_S = 0.1
_MOST_PAUSE_S = 1.0


class Following:
    """A stream of one key's changes that survives its connections.

    ``lag`` is of the newest event that states one, whether or not it was yielded.
    """

    def __init__(self, reads: Reads, wanted: ChangesRequest) -> None:
        self._reads = reads
        self._wanted = wanted
        self._opened: Opened | None = None
        self._server = 0
        """Where the stream is from."""
        self._reader = EventReader()
        self._events: deque[Event] = deque()
        self._last_event_id: str | None = None
        self._began = self._leaving = self._closed = False
        self._pause_s = _LEAST_PAUSE_S
        self.lag: Lag = UNKNOWN_LAG

    def _next_change(self) -> Plan[Change | None]:
        """The next change, None once it is closed."""
        while not self._closed:
            if self._events:
                change = self._take(self._events.popleft())
                if not isinstance(change, Provenance) or self._wanted.lag_interval_ms is not None:
                    return change
            elif self._leaving:
                self._leaving = False
                yield from self._leave()
            elif self._opened is not None:
                yield from self._receive(self._opened)
            else:
                problem = yield from self._open()
                if problem is not None:
                    return problem
        yield from self._close()
        return None

    def _close(self) -> Plan[None]:
        opened, self._opened = self._opened, None
        if opened is not None:
            yield Close(opened)

    def _take(self, event: Event) -> Change:
        if event.id is not None:
            self._last_event_id = event.id
        change = change_of(event)
        if change.lag is not None:
            self.lag = change.lag
        self._reads.note(self._wanted.store, change)
        self._leaving = False
        if not isinstance(change, Problem) or isinstance(change, UnknownKey):
            self._pause_s = _LEAST_PAUSE_S
        elif change.status in OF_THE_SERVER:
            # Another server may see more of the workers.
            self._leaving = self._reads.several
        return change

    def _receive(self, opened: Opened) -> Plan[None]:
        reply = yield Receive(opened)
        if isinstance(reply, bytes) and reply:
            self._events.extend(self._reader.feed(reply))
            return
        yield from self._leave()

    def _leave(self) -> Plan[None]:
        yield from self._close()
        self._reads.turn_from(self._server)
        yield from self._pause()

    def _open(self) -> Plan[Problem | None]:
        """Connect; the problem if there is one that may pass, raised if it is the first that is heard."""
        try:
            self._opened, self._server = yield from self._reads.open(self._wanted, self._last_event_id)
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
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
