"""The embedded worker group: leases in a SQLite database, for the processes of one machine.

Every member renews its lease a few times per session timeout. The holder of the leader lease computes the
assignment and writes it in a transaction that checks that it still leads and that nobody wrote since, so a
leader that was stopped and woke up changes nothing. Leases are on the boot-time clock, which all processes of
a machine share and nobody steps; a database from before a reboot holds no valid lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from forebay.changelog import Changelog
from forebay.changelog.sqlite.partition import enable_wal, transaction
from forebay.errors import ConfigurationError, ForebayError
from forebay.lag import boot_ms, epoch_ms
from forebay.metadata import NO_GENERATION, Generation
from forebay.topology import Topology
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimes, Leader, holders, may_lead
from forebay_worker.group.wire import AssignmentInfo, SubscriptionInfo, UnsupportedVersion

log = logging.getLogger(__name__)

_FORMAT = 1
_MOST_SESSIONS = 3
"""Of a leader's lease, beyond the half of one that it lasts where a round takes no time."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS grp (
    id INTEGER PRIMARY KEY CHECK (id = 0), format INTEGER NOT NULL, application_id TEXT NOT NULL,
    boot_id TEXT NOT NULL, incarnation INTEGER NOT NULL, generation INTEGER NOT NULL,
    leader TEXT, leader_until REAL NOT NULL, assignment BLOB);
CREATE TABLE IF NOT EXISTS member (
    id TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, host TEXT NOT NULL, fingerprint TEXT NOT NULL,
    subscription BLOB NOT NULL, lease_until REAL NOT NULL);
"""


@dataclass(frozen=True)
class _Seen:
    """What one look at the database showed a member."""

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
        times: GroupTimes,
        clock: Callable[[], float] = boot_ms,
    ) -> None:
        self.lease_until_boot_ms = 0.0
        self._path = path
        self._topology = topology
        self._leader = Leader(topology, changelog, policy)
        self._times = times
        self._clock = clock
        self._boot_id = _BOOT_ID.read_text().strip()
        self._known = NO_GENERATION
        self._fingerprint: str | None = None
        self._empty_since: tuple[int, float] | None = None
        self._founded_at: float | None = None
        self._unreadable: set[str] = set()
        self._trouble: str | None = None
        self._round_ms = 0.0
        """How long this member took to work out an assignment when it led last."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    @property
    def state(self) -> str:
        """``joining``, ``member`` or ``other-topology``."""
        if self._fingerprint is None:
            return "joining"
        return "member" if self._fingerprint == self._topology.fingerprint else "other-topology"

    def check(self) -> None:
        """Look whether the database is this application's; raises ``ConfigurationError`` where it is another's."""
        try:
            self._connect()
        except sqlite3.Error as error:
            log.warning("the worker group %s cannot be reached: %s", self._path, error)
        finally:
            self._disconnect()

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
            # What is on disk can be served meanwhile; the thread goes on trying.
            log.warning("the worker group %s cannot be reached: %s", self._path, error)
            self._disconnect()
        self._thread = threading.Thread(target=self._run, name="forebay-group", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End the lease now; the actives move at once."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self.lease_until_boot_ms = 0.0
        now = self._clock()
        with contextlib.suppress(sqlite3.Error), self._transaction() as connection:
            mine = self._subscription()
            left = connection.execute(
                "UPDATE member SET lease_until = ? WHERE id = ? AND incarnation = ?",
                (now, mine.process_id, mine.incarnation),
            )
            # Of another with the same id, from a copied state directory, everything stays.
            if left.rowcount:
                connection.execute(
                    "UPDATE grp SET leader = NULL, leader_until = 0 WHERE leader = ?", (mine.process_id,)
                )
        self._disconnect()

    def _run(self) -> None:
        pause_s = self._times.session_timeout_ms / 12 / 1000
        while not self._stopping.is_set():
            trouble = None
            try:
                self.tick()
            except sqlite3.Error as error:
                trouble = f"the worker group {self._path} cannot be reached: {error}"
                self._disconnect()
            except ForebayError as error:
                trouble = str(error)
            except Exception:
                log.exception("a round of the worker group failed; it is tried again")
            if trouble is not None and trouble != self._trouble:
                log.warning("%s", trouble)
            self._trouble = trouble
            self._stopping.wait(pause_s)

    def tick(self) -> None:
        """Renew the lease, lead if it falls to this member, and take over a newer generation."""
        mine = replace(self._subscription(), known_generation=self._known)
        now = self._clock()
        seen = self._renew(mine, now)
        self._take_over(seen)
        # Published after the roles that it vouches for.
        self.lease_until_boot_ms = now + self._times.session_timeout_ms
        if seen.leads:
            self._lead(seen, now)

    def _renew(self, mine: SubscriptionInfo, now: float) -> _Seen:
        until = now + self._times.session_timeout_ms
        with self._transaction() as connection:
            self._void_leases_of_another_boot(connection, now)
            row = connection.execute(
                "SELECT incarnation, generation, leader, leader_until, assignment FROM grp"
            ).fetchone()
            incarnation, number, leader, leader_until, assignment = row
            if assignment is not None and Generation(incarnation, number) > self._known:
                # A member that cannot read it rolls back: it must neither lead nor count as present.
                _read_assignment(assignment)
            self._refuse_copy(connection, mine, now)
            connection.execute(
                "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?, ?)",
                (mine.process_id, mine.incarnation, str(mine.host), mine.fingerprint, mine.encode(), until),
            )
            if self._known > (incarnation, number):
                # The database was made anew, or restored from before: go on above what members know.
                incarnation, number, assignment = self._known.incarnation + 1, 0, None
                connection.execute(
                    "UPDATE grp SET incarnation = ?, generation = 0, assignment = NULL", (incarnation,)
                )
            vacant = leader in (None, mine.process_id) or leader_until <= now
            leads = vacant and self._may_lead(connection, now, led=leader == mine.process_id)
            if leads:
                # A round that takes long must not outlast the lease it is worked out under.
                session_ms = self._times.session_timeout_ms
                lasts_ms = session_ms / 2 + min(2 * self._round_ms, _MOST_SESSIONS * session_ms)
                connection.execute(
                    "UPDATE grp SET leader = ?, leader_until = ?", (mine.process_id, now + lasts_ms)
                )
                connection.execute(
                    "DELETE FROM member WHERE lease_until <= ?", (now - self._times.standby_rebuild_delay_ms,)
                )
            elif leader == mine.process_id:
                # Most have another topology by now: one of them is to lead.
                connection.execute("UPDATE grp SET leader = NULL, leader_until = 0")
            rows = connection.execute("SELECT id, subscription, lease_until FROM member").fetchall()
        if self.lease_until_boot_ms == 0.0 and not any(
            lease > now for name, _, lease in rows if name != mine.process_id
        ):
            self._founded_at = now
        return _Seen(
            Generation(incarnation, number),
            assignment,
            leads,
            self._readable({name: raw for name, raw, _ in rows}) if leads else {},
            {name: lease for name, _, lease in rows},
        )

    def _may_lead(self, connection: sqlite3.Connection, now: float, *, led: bool) -> bool:
        rows = connection.execute("SELECT fingerprint FROM member WHERE lease_until > ?", (now,)).fetchall()
        return may_lead(self._topology.fingerprint, [fingerprint for (fingerprint,) in rows], led=led)

    def _readable(self, subscriptions: Mapping[str, bytes]) -> dict[str, SubscriptionInfo]:
        """What members tell; one that speaks a newer version must not keep the rest from being led."""
        read: dict[str, SubscriptionInfo] = {}
        for name, raw in subscriptions.items():
            try:
                read[name] = SubscriptionInfo.decode(raw)
            except UnsupportedVersion as error:
                if name not in self._unreadable:
                    log.warning("the member %s is given no tasks: %s", name, error)
                self._unreadable.add(name)
            else:
                self._unreadable.discard(name)
        return read

    def _take_over(self, seen: _Seen) -> None:
        if seen.assignment is None or seen.generation <= self._known:
            return
        info = _read_assignment(seen.assignment)
        if info.fingerprint != self._topology.fingerprint and self._fingerprint != info.fingerprint:
            log.error(
                "the group's leader follows topology %s, this worker %s: it goes on serving what it holds. "
                "Restart it with the group's topology.",
                info.fingerprint,
                self._topology.fingerprint,
            )
        self._fingerprint = info.fingerprint
        if info.fingerprint == self._topology.fingerprint:
            self._on_assignment(info)
        # Last: one that could not be followed is tried again, and no lease vouches for the roles before it.
        self._known = info.generation

    def _lead(self, seen: _Seen, now: float) -> None:
        alike = self._leader.alike(seen.subscriptions)
        previous = None if seen.assignment is None else _read_assignment(seen.assignment)
        before = self._leader.before(previous)
        if not before.actual and not self._waited_for_members(seen.generation.incarnation, now):
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
                "that goes on, raise session_timeout_ms.",
                self._round_ms / 1000,
            )

    def _write(self, info: AssignmentInfo, read: Generation) -> bool:
        """Write a generation if this member still leads and nobody wrote since ``read``."""
        me = self._subscription().process_id
        with self._transaction() as connection:
            written = connection.execute(
                "UPDATE grp SET generation = ?, assignment = ? "
                "WHERE leader = ? AND leader_until > ? AND incarnation = ? AND generation = ?",
                (info.generation.number, info.encode(), me, self._clock(), *read),
            ).rowcount
        return written == 1

    def _waited_for_members(self, incarnation: int, now: float) -> bool:
        # A database made anew is empty anew: the members that it does not know yet hold copies.
        if self._empty_since is None or self._empty_since[0] != incarnation:
            self._empty_since = (incarnation, now)
        return now - self._empty_since[1] >= self._times.initial_rebalance_delay_ms

    def _waits_for_holders(self, missing: set[str], now: float) -> bool:
        """Whether a group that all had left waits for those that hold something: they may be about to be back."""
        return (
            self._founded_at is not None
            and bool(missing)
            and now - self._founded_at < self._times.initial_rebalance_delay_ms
        )

    def _refuse_taken_address(self) -> None:
        mine = self._subscription()
        now = self._clock()
        with self._transaction() as connection:
            self._void_leases_of_another_boot(connection, now)
            taken = connection.execute(
                "SELECT id FROM member WHERE host = ? AND id <> ? AND lease_until > ?",
                (str(mine.host), mine.process_id, now),
            ).fetchone()
        if taken is not None:
            raise ConfigurationError(
                f"The address {mine.host} is advertised by another live worker ({taken[0]}) of the group "
                f"{self._path}. Give this one its own --advertise or --listen."
            )

    def _refuse_copy(self, connection: sqlite3.Connection, mine: SubscriptionInfo, now: float) -> None:
        """Of two processes with one id the one that was started last counts; raises ``ConfigurationError``."""
        row = connection.execute(
            "SELECT host, incarnation FROM member WHERE id = ? AND lease_until > ?", (mine.process_id, now)
        ).fetchone()
        if row is not None and row[0] != str(mine.host) and row[1] > mine.incarnation:
            raise ConfigurationError(
                f"The worker at {row[0]} was started later with this one's process id: the state directory of "
                f"one is a copy of the other's. This one, at {mine.host}, is given no tasks. Stop one, and remove "
                "process.json from its state directory."
            )

    def _void_leases_of_another_boot(self, connection: sqlite3.Connection, now: float) -> None:
        (boot_id,) = connection.execute("SELECT boot_id FROM grp").fetchone()
        if boot_id != self._boot_id:
            # Absent, not gone: what they have on disk is expected back.
            connection.execute("UPDATE member SET lease_until = ?", (now,))
            connection.execute("UPDATE grp SET boot_id = ?, leader = NULL, leader_until = 0", (self._boot_id,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connect()
        with transaction(connection):
            yield connection

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            # One that was removed and made anew by another member is another file under the same name.
            if self._file == _file_id(self._path):
                return self._connection
            self._disconnect()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The directory of the group {self._path} cannot be made: {error.strerror}. Name another --group."
            ) from None
        file = _file_id(self._path)
        connection = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
        try:
            self._file = file or _file_id(self._path)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Leases mean nothing after a crash of the machine, so they need not survive one.
        enable_wal(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        with transaction(connection):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(
                "INSERT OR IGNORE INTO grp VALUES (0, ?, ?, ?, ?, 0, NULL, 0, NULL)",
                (_FORMAT, self._topology.application_id, self._boot_id, self._new_incarnation()),
            )
            format_, application_id = connection.execute("SELECT format, application_id FROM grp").fetchone()
        if (format_, application_id) != (_FORMAT, self._topology.application_id):
            raise ConfigurationError(
                f"The group {self._path} is of application {application_id!r} (format {format_}), this worker "
                f"of {self._topology.application_id!r} (format {_FORMAT}). Give each application its own "
                "--group."
            )

    def _new_incarnation(self) -> int:
        return max(self._known.incarnation + 1, int(epoch_ms()))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@lru_cache(maxsize=2)
def _read_assignment(raw: bytes) -> AssignmentInfo:
    """The assignment as it was written; every look at the database brings the same bytes again."""
    return AssignmentInfo.decode(raw)
