"""Membership of the embedded group: renews a lease, and the leader's lease if this member leads.

Every member renews its lease a few times per session timeout. The holder of the leader lease computes the
assignment in another thread, and renews its leases meanwhile. It writes the assignment in a transaction that
checks that it still leads and that nothing was written since: a leader that was stopped and resumed changes
nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from forebay.clock import boot_ms, epoch_ms
from forebay.errors import AdvertisedByAnother, ConfigurationError, ForebayError, SettingError
from forebay.streams_metadata import Generation
from forebay_worker.group.election import holders, superseded
from forebay_worker.group.group_member import GroupMember, Inbox, Round
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.membership import Membership
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo
from forebay_worker.group.sqlite.lease_database import GroupDatabase, GroupTransaction, MemberRow
from forebay_worker.group.subscriptions import SubscriptionReader

log = logging.getLogger(__name__)

_LONGEST_ROUND_SESSIONS = 3
"""A leader that takes longer for a round may never end it, so another leads."""


@dataclass(frozen=True)
class _View:
    """The database after a member's renewal; ``members`` only if it leads."""

    mine: SubscriptionInfo
    generation: Generation
    assignment: bytes | None
    members: list[MemberRow]


class SqliteMembership(Membership):
    """One worker's membership; each round is a transaction."""

    def __init__(
        self,
        path: Path,
        leader: Leader,
        times: GroupTimeouts,
        clock: Callable[[], float] = boot_ms,
    ) -> None:
        super().__init__(GroupMember(leader.topology, times))
        self._database = GroupDatabase(path, leader.topology.application_id)
        self._leader = leader
        self._reader = SubscriptionReader()
        self._times = times
        self._clock = clock
        self._joined = False

    @classmethod
    def group_url(cls, changelog: str) -> str:
        """A file beside the logs."""
        return f"{changelog}/group.db"

    @classmethod
    def open(cls, url: str, leader: Leader, times: GroupTimeouts) -> SqliteMembership:
        """The membership in a file, which no other application may use; see ``Membership``."""
        path = url.partition(":")[2]
        if not path.startswith("///"):
            raise SettingError(
                f"The group {url!r} is not of the form sqlite:///FILE (three slashes, then the path)."
            )
        membership = cls(Path("/" + unquote(path).lstrip("/")), leader, times)
        try:
            with membership._transaction(membership._clock()):
                pass
        except sqlite3.Error as error:
            log.warning("the worker group %s cannot be reached: %s", membership._database.path, error)
        finally:
            membership._database.close()
        return membership

    def leave(self) -> None:
        """End the lease now; the actives move at once."""
        super().leave()
        now = self._clock()
        with contextlib.suppress(sqlite3.Error, ForebayError), self._transaction(now) as group:
            mine = self._subscription()
            # Another process with the same id, from a copied state directory, keeps everything.
            if group.put_lease(mine, now):
                group.end_leadership(mine.process_id)
        self._database.close()

    def _run(self) -> None:
        with ThreadPoolExecutor(1, "forebay-round") as threads:
            self._take_part(threads)

    def _take_part(self, threads: Executor) -> None:
        while not self._stopping.is_set():
            trouble = None
            try:
                self.tick(threads)
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
            self._stopping.wait(self._pause_s)

    @property
    def _pause_s(self) -> float:
        return self._times.session_timeout_ms / 12 / 1000

    def tick(self, threads: Executor | None = None) -> None:
        """Renew the lease, lead if it is this member's turn, and adopt a newer generation.

        With ``threads``, an assignment is computed in one of them, and the leases are renewed meanwhile.
        """
        mine = self.member.subscription(self._subscription())
        now = self._clock()
        view = self._renew(mine, now)
        self._follow(view)
        # Published after the roles that it covers.
        self.member.on_heartbeat(now)
        if self.member.leads:
            self._lead(view, now, threads)

    def _renew(self, mine: SubscriptionInfo, now: float) -> _View:
        with self._transaction(now) as group:
            generation, assignment, leader, leader_until = group.group()
            if assignment is not None and generation > mine.known_generation:
                # A member that cannot read it rolls back: it must neither lead nor count as present.
                _read_assignment(assignment)
            living = group.members(with_lease_at=now)
            _refuse_copy(living, mine)
            group.put_member(mine, now + self._times.session_timeout_ms)
            if mine.known_generation > generation:
                # The database was recreated, or restored from a backup: continue above what members know.
                generation, assignment = Generation(mine.known_generation.incarnation + 1, 0), None
                group.begin_incarnation(generation.incarnation)
            others = {row.process_id: row.fingerprint for row in living if row.process_id != mine.process_id}
            led = leader == mine.process_id
            if leader is None or led or leader_until <= now:
                self.member.elect([*others.values(), mine.fingerprint], led=led)
            if self.member.leads:
                self._lead_on(group, mine.process_id, now)
            elif led:
                # Most have another topology by now: one of them should lead.
                group.end_leadership(mine.process_id)
            members = group.members() if self.member.leads else []
        if not self._joined and not others:
            self.member.found(now)
        self._joined = True
        return _View(mine, generation, assignment, members)

    def _lead_on(self, group: GroupTransaction, me: str, now: float) -> None:
        """Take the leader's lease, or renew it."""
        group.put_leader(me, now + self._times.session_timeout_ms / 2)
        group.forget_members(now - self._times.standby_rebuild_delay_ms)

    def _follow(self, view: _View) -> None:
        if view.assignment is not None and view.generation > self.member.known:
            self.member.follow(_read_assignment(view.assignment), self._on_assignment)
        elif view.generation == self.member.known:
            # A database that was recreated does not know what others follow.
            self.member.keep()

    def _lead(self, view: _View, now: float, threads: Executor | None) -> None:
        led = self.member.lead(self._inbox(view, now), now)
        if led is None:
            return
        info = self._compute(led) if threads is None else self._compute_beside(led, view, now, threads)
        round_ms = self._clock() - now
        info = self.member.conclude(led, info, now)
        if info is None or info is led.previous:
            return
        if self._write(info, view.generation):
            log.info("generation %d: %d members", info.generation.number, len(led.present))
            self.member.follow(_read_assignment(info.encode()), self._on_assignment)
        else:
            log.warning(
                "an assignment came too late, after %.1f s: another member leads by now, or has written one. If "
                "this continues, raise session_timeout_ms.",
                round_ms / 1000,
            )

    def _compute(self, led: Round) -> AssignmentInfo | None:
        return self._leader.next_assignment(led.present, led.absent, led.previous, led.generation)

    def _compute_beside(self, led: Round, view: _View, began: float, threads: Executor) -> AssignmentInfo | None:
        """Compute the next assignment in another thread: meanwhile the leases must not run out."""
        computed = threads.submit(self._compute, led)
        while wait([computed], self._pause_s).not_done:
            now = self._clock()
            leads_on = now - began < _LONGEST_ROUND_SESSIONS * self._times.session_timeout_ms
            # As in every round, one that fails is followed by another.
            with contextlib.suppress(sqlite3.Error, ForebayError):
                if self._renew_within_round(view, now, leads_on=leads_on):
                    self.member.on_heartbeat(now)
        return computed.result()

    def _renew_within_round(self, view: _View, now: float, *, leads_on: bool) -> bool:
        """Renew the lease, unless there is a newer assignment to follow or another process with this one's id."""
        me = view.mine.process_id
        with self._transaction(now) as group:
            generation, _, leader, _ = group.group()
            renewed = generation == view.generation and group.put_lease(
                view.mine, now + self._times.session_timeout_ms
            )
            if renewed and leads_on and leader == me:
                self._lead_on(group, me, now)
        return renewed

    def _inbox(self, view: _View, now: float) -> Inbox:
        previous = None if view.assignment is None else _read_assignment(view.assignment)
        # A holder that the database no longer has was forgotten: it has been away for longer than it may.
        gone_since = {} if previous is None else dict.fromkeys(holders(previous.assignment), -math.inf)
        for row in view.members:
            gone_since[row.process_id] = row.lease_until
        gone_since = {name: since for name, since in gone_since.items() if since <= now}
        subscriptions = self._reader.read({row.process_id: row.subscription for row in view.members})
        here = {name: info for name, info in subscriptions.items() if name not in gone_since}
        gone = {name: info for name, info in subscriptions.items() if name in gone_since}
        return Inbox(
            {**gone, **self._reader.one_an_address(here)}, previous, view.generation, gone_since=gone_since
        )

    def _write(self, info: AssignmentInfo, read: Generation) -> bool:
        """Write a generation if this member still leads and nothing was written since ``read``."""
        with self._transaction(self._clock()) as group:
            # As of getting the lock: the leader's lease may have run out while waiting for it.
            return group.put_assignment(info, self._subscription().process_id, self._clock(), read)

    def _check_address(self) -> None:
        try:
            self._refuse_taken_address()
        except sqlite3.Error as error:
            # What is on disk can be served meanwhile; the thread keeps trying.
            log.warning("the worker group %s cannot be reached: %s", self._database.path, error)
            self._database.close()

    def _refuse_taken_address(self) -> None:
        mine = self._subscription()
        now = self._clock()
        with self._transaction(now) as group:
            living = group.members(with_lease_at=now)
        others = [row.process_id for row in living if row.host == str(mine.host)]
        taken = next((other for other in others if other != mine.process_id), None)
        if taken is not None:
            raise AdvertisedByAnother(
                f"The address {mine.host} is advertised by another live worker ({taken}) of the group "
                f"{self._database.path}. Give this one its own --advertise or --listen."
            )

    def _transaction(self, now: float) -> contextlib.AbstractContextManager[GroupTransaction]:
        # A recreated database starts above its predecessor.
        return self._database.transaction(now, max(self.member.known.incarnation + 1, int(epoch_ms())))


def _refuse_copy(living: list[MemberRow], mine: SubscriptionInfo) -> None:
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
