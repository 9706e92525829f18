"""When a read asks which replica: fail-over, hedging, waiting for bounds, and giving up.

A policy does no I/O and has no clock. Its driver reports events with the present time, and carries out the actions
that each call returns, in their order. The last action says what the read does next::

    begin, resume ──► WAIT ──► FINISH    a worker's answer is final
                     ▲    │
    settle, tick     │    ├──► REFRESH   no candidate is left: look for a newer map
                     │    │       │
                     └────┴───────┴────► GIVE UP

Times are milliseconds of the driver's clock. The order of the candidates is KIP-535's; hedging follows "The Tail
at Scale" (Dean and Barroso, 2013).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from enum import Enum, auto
from typing import Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

_MIN_TIME_FOR_AN_ATTEMPT_MS = 1.0
_RECHECK_INTERVAL_MS = 50.0
"""How soon a read notices that a worker it asked has been found to hang."""
_REFRESH_INTERVAL_MS = 250.0
"""How soon a read whose last candidate hangs notices that another worker took over."""

Host = TypeVar("Host", bound=Hashable)


class Replicas(Protocol[Host]):
    """What a driver knows of a partition's replicas, and of all reads together."""

    @property
    def generation(self) -> Hashable:
        """Of the map that the candidates are from."""

    def candidates(self) -> Sequence[Host]:
        """The workers to ask, best first."""

    def is_full(self, host: Host) -> bool:
        """Whether a worker is at its limit of requests in flight."""

    def is_healthy(self, host: Host) -> bool:
        """Whether a worker answers, as far as is known."""

    def hedge_delay_ms(self) -> float:
        """How long a worker that does not wait for bounds may take to answer before another is asked too."""

    def spend_hedge(self) -> bool:
        """Whether one more hedge is allowed; counts it if so."""


class AttemptOutcome(Enum):
    """What became of a request to a worker."""

    FINAL = auto()
    """An answer that no other worker would give otherwise."""
    NOT_YET = auto()
    """A refusal of what the worker may be able to answer soon."""
    OVERLOADED = auto()
    """The worker has too much to do; all may have."""
    REFUSED = auto()
    """Any other answer: another worker may have a better one."""
    FAILED = auto()
    """No answer, and none is to be expected."""
    UNSENT = auto()
    """The request may not have got there, which does not speak against the worker: it is asked again, first."""


class Ask(NamedTuple, Generic[Host]):
    """An action: ask a worker. ``lets_wait`` allows it to wait for the client's bounds."""

    host: Host
    lets_wait: bool
    is_hedge: bool


class Skip(NamedTuple, Generic[Host]):
    """An action: note that a worker is full and was not asked."""

    host: Host


class NoteSlow(NamedTuple, Generic[Host]):
    """An action: note that a worker has let a read wait past the hedge delay."""

    host: Host


class NoteThrottled(NamedTuple):
    """An action: note that no hedge was allowed when one was due; once a read."""


class Wait(NamedTuple):
    """The read waits for an answer, and calls ``tick`` if there is none by then."""

    until_ms: float


class Refresh(NamedTuple):
    """The read waits for the map that is being fetched, if one is, and calls ``refreshed``."""


class Finish(NamedTuple, Generic[Host]):
    """The read ends with a worker's answer."""

    host: Host
    is_hedge: bool


class GiveUp(NamedTuple):
    """The read ends without a final answer."""

    reason: Literal["late", "overloaded", "unanswered"]


Step: TypeAlias = Wait | Refresh | Finish[Host] | GiveUp
"""What a read does next; always the last of the actions."""
Action: TypeAlias = Ask[Host] | Skip[Host] | NoteSlow[Host] | NoteThrottled | Step[Host]


class ReadPolicy(Generic[Host]):
    """One read in progress: the workers still to ask, those being asked, and what became of the others.

    A worker is asked once, unless a newer map makes it a candidate again after it refused. If ``wait_ms`` is
    positive and ``asks_before_waiting``, each candidate is first asked what it can answer at once. Only if none
    can, those that may soon are asked again, to wait. If ``never_waits``, nobody is allowed to. Workers that are
    ``excluded`` are not asked.
    """

    def __init__(
        self,
        replicas: Replicas[Host],
        deadline_ms: float,
        *,
        wait_ms: float = 0,
        asks_before_waiting: bool = False,
        never_waits: bool = False,
        excluded: Collection[Host] = (),
    ) -> None:
        self._replicas = replicas
        self._deadline_ms = deadline_ms
        self._wait_ms = wait_ms
        self._asks_before_waiting = asks_before_waiting
        self._lets_wait = not never_waits
        self._never_waits = never_waits
        self._generation = replicas.generation
        self._waiting: list[Host] = []
        self._in_flight: dict[Host, float] = {}
        """Since when those that are being asked are."""
        self._met = set(excluded)
        """All that are not to be taken from the candidates again."""
        self._refused: set[Host] = set()
        self._not_yet: list[Host] = []
        self._slow: set[Host] = set()
        self._hedges: set[Host] = set()
        """Those of which the last request was one."""
        self._hedge_due_ms = 0.0
        self._hedge_throttled = False
        self._overloaded: Host | None = None
        """The first that had too much to do: each that is asked after it costs a hedge."""
        self._skipped_healthy = False
        self._is_resumed = False
        """Whether it is of one key, whose answer never takes long: silence means something then."""
        self._actions: list[Action[Host]] = []

    def begin(self, now_ms: float) -> list[Action[Host]]:
        """Ask the best candidate."""
        self._find_candidates()
        self._asks_before_waiting = self._asks_before_waiting and self._wait_ms > 0 and len(self._waiting) > 1
        self._lets_wait = not (self._asks_before_waiting or self._never_waits)
        return self._done(self._go_on(now_ms))

    def resume(self, host: Host, sent_ms: float) -> None:
        """Begin with a worker that was already asked and has not answered yet, in place of ``begin``."""
        self._asks_before_waiting = False
        self._is_resumed = True
        self._met.add(host)
        self._find_candidates()
        self._note_sent(host, sent_ms)

    def settle(self, outcomes: Sequence[tuple[Host, AttemptOutcome]], now_ms: float) -> list[Action[Host]]:
        """Take what became of requests, those that were known together in one call; go on if none is final."""
        for host, outcome in outcomes:
            del self._in_flight[host]
            if self._is_final(host, outcome, now_ms):
                return self._done(Finish(host, host in self._hedges))
        if self._is_late(now_ms):
            return self._done(GiveUp("late"))
        if self._in_flight:
            # A fail-over is free, even while others are being asked.
            self._ask_next(now_ms)
            return self._done(self._pause(now_ms))
        return self._done(self._go_on(now_ms))

    def tick(self, now_ms: float) -> list[Action[Host]]:
        """No answer came by the time of ``Wait``: ask one more if those asked hang, or as a hedge."""
        if self._is_late(now_ms):
            return self._done(GiveUp("late"))
        self._note_slow(now_ms)
        if not self._waiting and self._ask_again_to_wait(now_ms):
            return self._done(self._pause(now_ms))
        if not self._waiting:
            # Another worker may have taken over meanwhile.
            self._find_candidates()
        if not any(map(self._replicas.is_healthy, self._in_flight)):
            # This is not a hedge: workers that hang are not expected to answer.
            self._ask_next(now_ms)
        elif self._waiting and now_ms >= self._hedge_due_ms:
            self._hedge(now_ms)
        return self._done(self._pause(now_ms))

    def refreshed(self, now_ms: float) -> list[Action[Host]]:
        """The map is as new as can be had: ask whoever was not asked yet."""
        self._find_candidates()
        if self._waiting and self._is_late(now_ms):
            return self._done(GiveUp("late"))
        return self._done(self._ask_or_give_up(now_ms))

    def _done(self, step: Step[Host]) -> list[Action[Host]]:
        actions, self._actions = self._actions, []
        return [*actions, step]

    def _find_candidates(self) -> None:
        """Find the workers to ask, best first, except those already met."""
        generation = self._replicas.generation
        if generation != self._generation:
            # A worker may have been assigned since what it refused before.
            self._generation = generation
            self._met -= self._refused
            self._refused.clear()
        self._waiting = [host for host in self._replicas.candidates() if host not in self._met]
        self._met.update(self._waiting)

    def _go_on(self, now_ms: float) -> Step[Host]:
        """Nobody is being asked: ask the next, or again those that may wait, or look for others."""
        if self._waiting:
            return self._ask_or_give_up(now_ms)
        if self._ask_again_to_wait(now_ms):
            return self._pause(now_ms)
        return Refresh() if self._overloaded is None else Finish(self._overloaded, False)

    def _ask_or_give_up(self, now_ms: float) -> Step[Host]:
        if self._ask_next(now_ms):
            return self._pause(now_ms)
        if self._overloaded is not None:
            return Finish(self._overloaded, False)
        return GiveUp("overloaded" if self._skipped_healthy else "unanswered")

    def _ask_next(self, now_ms: float, *, is_hedge: bool = False) -> bool:
        """Ask the best remaining candidate that is not full; returns whether there was one."""
        while self._waiting:
            host = self._waiting.pop(0)
            if self._replicas.is_full(host):
                # A worker that hangs will not recover by being asked again.
                self._skipped_healthy |= self._replicas.is_healthy(host)
                self._actions.append(Skip(host))
                continue
            if self._overloaded is not None and not is_hedge and not self._replicas.spend_hedge():
                # Where all have too much to do, one more request for each would be the last straw.
                self._waiting.clear()
                return False
            self._actions.append(Ask(host, self._lets_wait, is_hedge))
            (self._hedges.add if is_hedge else self._hedges.discard)(host)
            self._note_sent(host, now_ms)
            return True
        return False

    def _note_sent(self, host: Host, sent_ms: float) -> None:
        self._in_flight[host] = sent_ms
        # The next worker must have time to answer too.
        self._hedge_due_ms = sent_ms + min(self._silence_ms(), (self._deadline_ms - sent_ms) / 2)

    def _ask_again_to_wait(self, now_ms: float) -> bool:
        """Ask all that refused what they may be able to answer soon, to wait; returns whether anyone is asked."""
        if not self._asks_before_waiting:
            return False
        self._asks_before_waiting, self._lets_wait = False, True
        self._waiting, self._not_yet = self._not_yet, []
        self._refused.difference_update(self._waiting)
        while self._ask_next(now_ms):
            pass
        return bool(self._in_flight)

    def _silence_ms(self) -> float:
        """How long those asked may be silent, including the time they were allowed to wait."""
        return self._replicas.hedge_delay_ms() + (self._wait_ms if self._lets_wait else 0)

    def _is_final(self, host: Host, outcome: AttemptOutcome, now_ms: float) -> bool:
        """Record what became of a request; whether its answer ends the read."""
        match outcome:
            case AttemptOutcome.FINAL:
                # One that is late waited to be received, because the process was stopped for example.
                return now_ms <= self._deadline_ms
            case AttemptOutcome.FAILED:
                return False
            case AttemptOutcome.UNSENT:
                if host in self._replicas.candidates():
                    self._waiting.insert(0, host)
                return False
            case AttemptOutcome.NOT_YET:
                self._not_yet.append(host)
            case AttemptOutcome.OVERLOADED:
                self._overloaded = self._overloaded or host
        self._refused.add(host)
        return False

    def _note_slow(self, now_ms: float) -> None:
        if not self._waiting and not self._is_resumed:
            return
        for host, sent_ms in self._in_flight.items():
            if host not in self._slow and now_ms - sent_ms >= self._silence_ms():
                self._slow.add(host)
                self._actions.append(NoteSlow(host))

    def _hedge(self, now_ms: float) -> None:
        """Ask one more if the budget allows."""
        if self._replicas.spend_hedge():
            self._ask_next(now_ms, is_hedge=True)
            return
        if not self._hedge_throttled:
            self._hedge_throttled = True
            self._actions.append(NoteThrottled())
        self._hedge_due_ms = now_ms + _RECHECK_INTERVAL_MS

    def _pause(self, now_ms: float) -> Wait:
        if self._waiting:
            return Wait(min(self._deadline_ms, self._hedge_due_ms, now_ms + _RECHECK_INTERVAL_MS))
        interval_ms = _RECHECK_INTERVAL_MS if self._is_resumed else _REFRESH_INTERVAL_MS
        return Wait(min(self._deadline_ms, now_ms + interval_ms))

    def _is_late(self, now_ms: float) -> bool:
        return now_ms >= self._deadline_ms - _MIN_TIME_FOR_AN_ATTEMPT_MS
