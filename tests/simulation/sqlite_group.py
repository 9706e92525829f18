"""Memberships over SQLite in virtual time: their rounds are real, and so are the transactions, in one database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

from forebay.errors import ForebayError
from forebay_changelog import Changelog
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.sqlite import lease_database
from forebay_worker.group.sqlite.lease_database import GroupDatabase, GroupTransaction
from forebay_worker.group.sqlite.membership import SqliteMembership
from tests.simulation.scheduler import Scheduler
from tests.simulation.worker import POLICY, Ends, SimulatedWorker

ROUNDS_PER_SESSION = 6
"""Half as many as there are, so that a lost one counts."""


@dataclass
class SharedDatabase:
    """A database in memory that all members have open; ``fails`` tells whether a transaction does."""

    path: Path = Path("group.db")
    fails: float = 0.0
    random: Random = field(default_factory=Random)
    _connection: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.recreate()

    def recreate(self) -> None:
        """Begin with an empty one, as after its removal."""
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in lease_database._SCHEMA.split(";"):
            self._connection.execute(statement)

    @contextlib.contextmanager
    def transaction(self, now: float, first_incarnation: int) -> Iterator[GroupTransaction]:
        """As ``GroupDatabase.transaction``."""
        if self.random.random() < self.fails:
            raise sqlite3.OperationalError("database is locked")
        with lease_database.transaction(self._connection):
            # By virtual time, where a real one would take the wall clock's.
            begun = "INSERT OR IGNORE INTO grp VALUES (0, 1, 'app', 'boot', ?, 0, NULL, 0, NULL)"
            self._connection.execute(begun, (int(now),))
            yield GroupTransaction(self._connection)

    def close(self) -> None:
        """It stays, for the others."""

    def delete(self) -> None:
        """Free it."""
        self._connection.close()


class SqliteGroup:
    """All members of a group, each with a round every so often; by default their database is in memory."""

    def __init__(
        self, scheduler: Scheduler, random: Random, times: GroupTimeouts, path: Path | None = None
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._times = times
        self._path = path
        self._database = SharedDatabase(random=random)
        self._opened: list[GroupDatabase] = []
        self._interval_ms = times.session_timeout_ms / ROUNDS_PER_SESSION

    def join(self, worker: SimulatedWorker, ends: Ends) -> None:
        """Let a worker take part from now on."""
        leader = Leader(worker.topology, cast(Changelog, ends), POLICY)
        path = self._path or self._database.path
        membership = SqliteMembership(path, leader, self._times, self._scheduler.clock)
        if self._path is None:
            membership._database = cast(GroupDatabase, self._database)
        self._opened.append(membership._database)
        membership._subscription, membership._on_assignment = worker.subscription, worker.on_assignment
        worker.membership = membership
        self._scheduler.after(0, lambda: self._round(worker, membership))

    def leave(self, worker: SimulatedWorker) -> None:
        """Leave in good order."""
        worker.membership.leave()
        worker.gone = True

    def disturb(self, severity: float) -> None:
        """From now on, so large a part of what is sent is lost."""
        self._database.fails = severity

    def forget(self) -> None:
        """Lose the database."""
        self._database.recreate()

    def close(self) -> None:
        """Free what it holds."""
        for opened in self._opened:
            opened.close()
        self._database.delete()

    def _round(self, worker: SimulatedWorker, membership: SqliteMembership) -> None:
        def round() -> None:
            # As the membership's thread does: the next round tries again.
            with contextlib.suppress(sqlite3.Error, ForebayError, OSError):
                membership.tick()
            pause_ms = self._interval_ms * self._random.uniform(0.9, 1.1)
            self._scheduler.after(pause_ms, lambda: self._round(worker, membership))

        worker.run(round)
