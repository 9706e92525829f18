"""Membership of the embedded group: renews a lease, and the leader's lease if this member leads.

Every member renews its lease a few times per session timeout. The holder of the leader lease computes the
assignment and writes it in a transaction that checks that it still leads and that nothing was written since, so a
leader that was stopped and resumed changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from forebay.changelog import Changelog
from forebay.clock import boot_ms, epoch_ms
from forebay.errors import AdvertisedByAnother, ConfigurationError, ForebayError
from forebay.metadata import NO_GENERATION, Generation
from forebay.topology import Topology
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts, Leader, holders, may_lead, superseded
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo
from forebay_worker.group.sqlite.database import GroupDatabase, GroupTransaction, LivingMember
from forebay_worker.group.subscriptions import SubscriptionReader

log = logging.getLogger(__name__)

_MOST_SESSIONS = 3
"""Extra time on a leader's lease, beyond the half session that it lasts if a round takes no time."""


@dataclass(frozen=True)
class _Seen:
    """A member's view of the database after one round."""

    generation: Generation
    assignment: bytes | None
    leads: bool
    subscriptions: Mapping[str, SubscriptionInfo]
    lease_until: Mapping[str, float]


class SqliteMembership:
    """One worker's membership; the interface is ``Membership``."""

    def __init__(
        self,
        path: Path,
        topology: Topology,
        changelog: Changelog,
        policy: AssignmentPolicy,
        times: GroupTimeouts,
        clock: Callable[[], float] = boot_ms,
    ) -> None:
        self.lease_until_boot_ms = 0.0
        self._database = GroupDatabase(path, topology.application_id)
        self._topology = topology
        self._leader = Leader(topology, changelog, policy)
        self._reader = SubscriptionReader()
        self._times = times
        self._clock = clock
        self._known = NO_GENERATION
        self._fingerprint: str | None = None
        self._empty_since: tuple[int, float] | None = None
        self._founded_at: float | None = None
        self.refusal: str | None = None
        self._round_ms = 0.0
        """How long this member took to compute an assignment when it last led."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> str:
        """``joining``, ``member`` or ``other-topology``."""
        if self._fingerprint is None:
            return "joining"
        return "member" if self._fingerprint == self._topology.fingerprint else "other-topology"

    def check(self) -> None:
        """Check that the database belongs to this application; raises ``ConfigurationError`` otherwise."""
        try:
            with self._transaction(self._clock()):
                pass
        except sqlite3.Error as error:
            log.warning("the worker group %s cannot be reached: %s", self._database.path, error)
        finally:
            self._database.close()

    def start(
        self,
        subscription: Callable[[], SubscriptionInfo],
        on_assignment: Callable[[AssignmentInfo], None],
    ) -> None:
        """Join, and keep the lease in a thread; raises ``ConfigurationError``."""
        self._subscription = subscription
        self._on_assignment = on_assignment
        try:
            self._refuse_taken_address()
        except sqlite3.Error as error:
            # What is on disk can be served meanwhile; the thread keeps trying.
            log.warning("the worker group %s cannot be reached: %s", self._database.path, error)
            self._database.close()
        self._thread = threading.Thread(target=self._run, name="forebay-group", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End the lease now; the actives move at once."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self.lease_until_boot_ms = 0.0
        now = self._clock()
        with contextlib.suppress(sqlite3.Error, ForebayError), self._transaction(now) as group:
            mine = self._subscription()
            # Another process with the same id, from a copied state directory, keeps everything.
            if group.end_lease(mine, now):
                group.end_leadership(mine.process_id)
        self._database.close()

    def _run(self) -> None:
        pause_s = self._times.session_timeout_ms / 12 / 1000
        while not self._stopping.is_set():
            trouble = None
            try:
                self.tick()
            except sqlite3.Error as error:
                trouble = f"the worker group {self._database.path} cannot be reached: {error}"
                self._database.close()
            except ForebayError as error:
                trouble = str(error)
            except Exception:
                log.exception("a round of the worker group failed; it will be retried")
            if trouble is not None and trouble != self.refusal:
                log.warning("%s", trouble)
            self.refusal = trouble
            self._stopping.wait(pause_s)

    def tick(self) -> None:
        """Renew the lease, lead if it is this member's turn, and adopt a newer generation."""
        mine = replace(self._subscription(), known_generation=self._known)
        now = self._clock()
        seen = self._renew(mine, now)
        self._take_over(seen)
        # Published after the roles that it covers.
        self.lease_until_boot_ms = now + self._times.session_timeout_ms
        if seen.leads:
            self._lead(seen, now)

    def _renew(self, mine: SubscriptionInfo, now: float) -> _Seen:
        with self._transaction(now) as group:
            generation, assignment, leader, leader_until = group.group()
            if assignment is not None and generation > self._known:
                # A member that cannot read it rolls back: it must neither lead nor count as present.
                _read_assignment(assignment)
            living = group.living(now)
            _refuse_copy(living, mine)
            group.put_member(mine, now + self._times.session_timeout_ms)
            if self._known > generation:
                # The database was recreated, or restored from a backup: continue above what members know.
                generation, assignment = Generation(self._known.incarnation + 1, 0), None
                group.begin_incarnation(generation.incarnation)
            others = {row.process_id: row.fingerprint for row in living if row.process_id != mine.process_id}
            fingerprints = [*others.values(), mine.fingerprint]
            led = leader == mine.process_id
            leads = (leader is None or led or leader_until <= now) and may_lead(
                mine.fingerprint, fingerprints, led=led
            )
            if leads:
                self._lead_on(group, mine.process_id, now)
            elif led:
                # Most have another topology by now: one of them should lead.
                group.end_leadership(mine.process_id)
            members = group.members()
        if self.lease_until_boot_ms == 0.0 and not others:
            self._founded_at = now
        return _Seen(
            generation,
            assignment,
            leads,
            self._reader.read({row.process_id: row.subscription for row in members}) if leads else {},
            {row.process_id: row.lease_until for row in members},
        )

    def _lead_on(self, group: GroupTransaction, me: str, now: float) -> None:
        """Take the leader's lease, or renew it; a round that takes long must not outlast it."""
        session_ms = self._times.session_timeout_ms
        group.put_leader(me, now + session_ms / 2 + min(2 * self._round_ms, _MOST_SESSIONS * session_ms))
        group.forget_members(now - self._times.standby_rebuild_delay_ms)

    def _take_over(self, seen: _Seen) -> None:
        if seen.assignment is None or seen.generation <= self._known:
            return
        info = _read_assignment(seen.assignment)
        if info.fingerprint != self._topology.fingerprint and self._fingerprint != info.fingerprint:
            log.warning(
                "the group's leader has topology %s, this worker %s: it keeps serving what it holds. "
                "This is normal while a new topology is rolled out; otherwise restart it with the group's.",
                info.fingerprint,
                self._topology.fingerprint,
            )
        self._fingerprint = info.fingerprint
        if info.fingerprint == self._topology.fingerprint:
            self._on_assignment(info)
        # Last: a generation that could not be followed is retried, and no lease covers the roles before it.
        self._known = info.generation

    def _lead(self, seen: _Seen, now: float) -> None:
        alike = self._leader.alike(seen.subscriptions)
        previous = None if seen.assignment is None else _read_assignment(seen.assignment)
        before = self._leader.before(previous)
        if not before.current and not self._waited_for_members(seen.generation.incarnation, now):
            return
        until = seen.lease_until
        present = {name: alike[name] for name in alike if until[name] > now}
        gone = now - self._times.standby_rebuild_delay_ms
        elsewhere = self._leader.elsewhere(seen.subscriptions, before)
        absent = {name: alike[name].rack for name in alike if gone < until[name] <= now}
        absent |= {name: rack for name, rack in elsewhere.items() if gone < until[name]}
        if self._waits_for_holders(holders(before) - present.keys(), now):
            return
        generation = Generation(seen.generation.incarnation, seen.generation.number + 1)
        info = self._leader.next_assignment(present, absent, previous, generation)
        self._round_ms = self._clock() - now
        if info is None:
            return
        if self._write(info, seen.generation):
            log.info("generation %d: %d members", generation.number, len(present))
            self._take_over(replace(seen, generation=generation, assignment=info.encode()))
        else:
            log.warning(
                "an assignment came too late, after %.1f s: another member leads by now, or has written one. If "
                "this continues, raise session_timeout_ms.",
                self._round_ms / 1000,
            )

    def _write(self, info: AssignmentInfo, read: Generation) -> bool:
        """Write a generation if this member still leads and nothing was written since ``read``."""
        with self._transaction(self._clock()) as group:
            # As of getting the lock: the leader's lease may have run out while waiting for it.
            return group.put_assignment(info, self._subscription().process_id, self._clock(), read)

    def _waited_for_members(self, incarnation: int, now: float) -> bool:
        # A recreated database is empty: members that it does not know yet may hold copies.
        if self._empty_since is None or self._empty_since[0] != incarnation:
            self._empty_since = (incarnation, now)
        return now - self._empty_since[1] >= self._times.initial_rebalance_delay_ms

    def _waits_for_holders(self, missing: set[str], now: float) -> bool:
        """Whether a group that all had left waits for members that hold something, which may be about to
        return."""
        return (
            self._founded_at is not None
            and bool(missing)
            and now - self._founded_at < self._times.initial_rebalance_delay_ms
        )

    def _refuse_taken_address(self) -> None:
        mine = self._subscription()
        now = self._clock()
        with self._transaction(now) as group:
            others = [row for row in group.living(now) if row.process_id != mine.process_id]
        taken = next((row.process_id for row in others if row.host == str(mine.host)), None)
        if taken is not None:
            raise AdvertisedByAnother(
                f"The address {mine.host} is advertised by another live worker ({taken}) of the group "
                f"{self._database.path}. Give this one its own --advertise or --listen."
            )

    def _transaction(self, now: float) -> contextlib.AbstractContextManager[GroupTransaction]:
        # A recreated database starts above its predecessor.
        return self._database.transaction(now, max(self._known.incarnation + 1, int(epoch_ms())))


def _refuse_copy(living: list[LivingMember], mine: SubscriptionInfo) -> None:
    """Of two processes with the same id, the one started last counts; raises ``ConfigurationError`` in the
    other."""
    for row in living:
        later = row.process_id == mine.process_id and row.incarnation > mine.incarnation
        if later and row.host != str(mine.host):
            raise ConfigurationError(superseded(row.host, mine.host))


@lru_cache(maxsize=2)
def _read_assignment(raw: bytes) -> AssignmentInfo:
    """The assignment as it was written; every round reads the same bytes again."""
    return AssignmentInfo.decode(raw)
