"""A member of the worker group, whatever carries its messages: clock and inbox in, decisions out.

No I/O and no threads. A backend delivers what arrives, and carries out what is decided.

Whose assignments it follows (``state``)::

                                 follow(): its own topology
        joining ────────────────────────────────────────────► member
           │                                                  │    ▲
           │ follow(): another topology    another topology   │    │  its own topology
           └────────────────────────────► other-topology ◄────┘    │
                                                └──────────────────┘

Until when it may answer as active (``lease_until_boot_ms``)::

                            follow() succeeded
        no lease ────────────────────────────────────► leased ──┐ on_heartbeat(sent):
           ▲                                          │  ▲   ▲  │ until the newest sent + session_timeout_ms
           │                                          │  │   └──┘
           │                            subscription()│  │follow() succeeded, keep()
           │                                          ▼  │
           └──────────────────────────────────────── in a round: the lease runs on, and nothing extends it
               follow() failed, or of an older generation than it knows; end_lease()

What it does for the others (``leads``)::

                      elect(): most members have its topology
        follower ─────────────────────────────────────────────► leader ──┐ lead(): None, the group forms
           ▲                                                      │  ▲   │ lead(): a round, then conclude()
           └──────────────────────────────────────────────────────┘  └───┘
               subscription(), then no elect(); elect(): most have another topology
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from forebay.streams_metadata import NO_GENERATION, Generation
from forebay.topology import Topology
from forebay_worker.group.election import alike, holders, may_get_place, may_lead, may_return
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.messages import AssignmentInfo, Location, SubscriptionInfo
from forebay_worker.group.placement import Assignment
from forebay_worker.group.previous_assignment import assignment_to_continue

log = logging.getLogger(__name__)


class Absences:
    """The members that hold something and are missing, as the leader knows them.

    Where the group's backend keeps when each member's lease ended, that counts. Else the leader counts from the
    first round in which it misses a member. A later leader begins to count anew, so a place is kept longer, not
    lost.
    """

    def __init__(self, standby_rebuild_delay_ms: float) -> None:
        self._delay_ms = standby_rebuild_delay_ms
        self._missing_since: dict[str, float] = {}

    def forget(self) -> None:
        """Begin anew: another leader led meanwhile, and a member may have been back."""
        self._missing_since.clear()

    def expected_back(self, missing: Set[str], gone_since: Mapping[str, float], now: float) -> dict[str, float]:
        """The missing members that keep their places, and until when.

        ``gone_since`` has the end of each lease that the backend remembers.
        """
        unrecorded = missing - gone_since.keys()
        self._missing_since = {name: self._missing_since.get(name, now) for name in unrecorded}
        since = {**gone_since, **self._missing_since}
        return {name: since[name] + self._delay_ms for name in missing if since[name] + self._delay_ms > now}


@dataclass(frozen=True)
class Inbox:
    """What a backend has for a leader at the start of a round."""

    subscriptions: Mapping[str, SubscriptionInfo]
    """By process: the members, and those that are gone if the backend keeps their messages."""
    previous: AssignmentInfo | None
    newest: Generation
    """The highest generation of which the backend or a member knows."""
    is_followed: bool = True
    """Whether members follow the previous assignment, as far as they are present."""
    gone_since: Mapping[str, float] = field(default_factory=dict)
    """By process that is gone, when its lease ended, if the backend keeps that."""

    def location_of(self, name: str) -> Location:
        """Where a member is or was, by its message, or by the previous assignment if there is none."""
        if name in self.subscriptions:
            return self.subscriptions[name].location
        return Location() if self.previous is None else self.previous.locations.get(name, Location())


@dataclass(frozen=True)
class Round:
    """The inputs of a leader's next assignment; ``absent`` has where each member was that is expected back."""

    present: Mapping[str, SubscriptionInfo]
    absent: Mapping[str, Location]
    previous: AssignmentInfo | None
    generation: Generation
    is_followed: bool


class GroupMember:
    """One worker's part in its group; all times are of the boot-time clock, in milliseconds."""

    def __init__(self, topology: Topology, times: GroupTimeouts) -> None:
        self.lease_until_boot_ms = 0.0
        self.known = NO_GENERATION
        """The newest generation that it follows."""
        self.leads = self.led_before = False
        self.next_round_boot_ms = math.inf
        """When the leader needs another round, whatever happens."""
        self._topology = topology
        self._times = times
        self._fingerprint: str | None = None
        self._follows = False
        self._heartbeat_sent_boot_ms = 0.0
        self._absences = Absences(times.standby_rebuild_delay_ms)
        self._last_led = NO_GENERATION
        self._empty_since: tuple[int, float] | None = None
        self._founded_at: float | None = None

    @property
    def state(self) -> str:
        """``joining``, ``member`` or ``other-topology``."""
        if self._fingerprint is None:
            return "joining"
        return "member" if self._fingerprint == self._topology.fingerprint else "other-topology"

    def subscription(self, mine: SubscriptionInfo) -> SubscriptionInfo:
        """The message that begins a round; who leads is decided anew.

        Until the round ends, by ``follow`` or ``keep``, others may follow a newer assignment.
        """
        self.led_before, self.leads = self.leads, False
        self._follows = False
        self.next_round_boot_ms = math.inf
        return replace(mine, known_generation=self.known)

    def on_heartbeat(self, sent_boot_ms: float) -> None:
        """The group knew this member when it sent that; an answer that comes late extends nothing."""
        self._heartbeat_sent_boot_ms = max(sent_boot_ms, self._heartbeat_sent_boot_ms)
        if self._follows:
            self.lease_until_boot_ms = self._heartbeat_sent_boot_ms + self._times.session_timeout_ms

    def keep(self) -> None:
        """The round ends, and the group has nothing newer than what this member follows."""
        self._follows = self._fingerprint is not None

    def end_lease(self) -> None:
        """Be active for nothing until an assignment is followed again."""
        self._follows = False
        self.lease_until_boot_ms = 0.0

    def follow(self, info: AssignmentInfo, on_assignment: Callable[[AssignmentInfo], None]) -> None:
        """Follow the leader's newest assignment: ``on_assignment`` gets one that is newer than what is known.

        If it raises, the generation stays unknown, to be tried again, and no lease covers the roles before it.
        """
        self._follows = False
        try:
            self._warn_of_topology(info)
            if info.generation > self.known:
                if info.fingerprint == self._topology.fingerprint:
                    on_assignment(info)
                # Last: a generation that could not be followed is tried again.
                self.known = info.generation
            self._fingerprint = info.fingerprint
            self._follows = info.generation == self.known
        finally:
            if not self._follows:
                self.lease_until_boot_ms = 0.0
        if self.leads:
            self._last_led = info.generation
        self.on_heartbeat(self._heartbeat_sent_boot_ms)

    def _warn_of_topology(self, info: AssignmentInfo) -> None:
        if info.fingerprint not in (self._topology.fingerprint, self._fingerprint):
            log.warning(
                "the group's leader has topology %s, this worker %s: it keeps serving what it holds. "
                "This is normal while a new topology is rolled out; otherwise restart it with the group's.",
                info.fingerprint,
                self._topology.fingerprint,
            )

    def elect(self, fingerprints: Iterable[str], *, led: bool) -> bool:
        """Whether it leads, if the backend would have it: only a topology that most members have may lead."""
        self.leads = may_lead(self._topology.fingerprint, fingerprints, led=led)
        return self.leads

    def found(self, now: float) -> None:
        """It is the first of its group: until its first round, members that hold something may be about to
        return."""
        if self._founded_at is None:
            self._founded_at = now

    def lead(self, inbox: Inbox, now: float) -> Round | None:
        """The inputs of the next assignment; None if the group should wait for members until the next round."""
        before = assignment_to_continue(self._topology, inbox.previous)
        here = {name: info for name, info in inbox.subscriptions.items() if name not in inbox.gone_since}
        present = alike(self._topology, here)
        missing = holders(before) - present.keys()
        self.next_round_boot_ms = self._formed_at(inbox.newest.incarnation, before, missing, now)
        if now < self.next_round_boot_ms:
            return None
        self._founded_at = -math.inf
        absent = self._absent(inbox, here, missing, now)
        generation = Generation(inbox.newest.incarnation, inbox.newest.number + 1)
        return Round(present, absent, inbox.previous, generation, inbox.is_followed)

    def _formed_at(self, incarnation: int, before: Assignment, missing: set[str], now: float) -> float:
        """Until when a group that forms waits for members that are about to join, or that hold something."""
        began = -math.inf
        if not before.current:
            # Where the group was recreated, members that it does not know yet may hold copies.
            if self._empty_since is None or self._empty_since[0] != incarnation:
                self._empty_since = (incarnation, now)
            began = self._empty_since[1]
        elif missing and self._founded_at is not None:
            began = self._founded_at
        return began + self._times.initial_rebalance_delay_ms

    def _absent(
        self, inbox: Inbox, here: Mapping[str, SubscriptionInfo], missing: set[str], now: float
    ) -> dict[str, Location]:
        """The members that are expected back, and where they were: some are gone; some serve what they hold, with
        another topology."""
        if inbox.previous is not None and inbox.previous.generation > self._last_led:
            # Another leader wrote it, and may have had members back that this one misses.
            self._absences.forget()
            self._last_led = inbox.previous.generation
        elsewhere = missing & here.keys()
        gone = {name: info for name, info in inbox.subscriptions.items() if name in inbox.gone_since}
        lost = {name for name, info in gone.items() if not may_return(info)}
        holding = {name for name, info in alike(self._topology, gone).items() if may_get_place(info)}
        until = self._absences.expected_back((missing - lost | holding) - elsewhere, inbox.gone_since, now)
        self.next_round_boot_ms = min(until.values(), default=math.inf)
        return {name: inbox.location_of(name) for name in (*until, *elsewhere)}

    def conclude(self, led: Round, info: AssignmentInfo | None, now: float) -> AssignmentInfo | None:
        """The assignment to give out after a round: the new one, or the previous one again.

        A previous one that members may not follow is given out under a new generation. They may know of a newer
        one, or of another one of its generation, by a leader that was deposed.
        """
        if info is None and led.previous is not None:
            info = led.previous if led.is_followed else replace(led.previous, generation=led.generation)
        if info is not None and not info.assignment.settled:
            probing_boot_ms = now + self._times.probing_rebalance_interval_ms
            self.next_round_boot_ms = min(self.next_round_boot_ms, probing_boot_ms)
        return info
