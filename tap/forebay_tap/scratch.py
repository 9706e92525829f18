"""What the tap remembers of state beside the log: a temporary SQLite database that only this process sees.

Its pages stay in memory while they are few, and go to a deleted file beyond that. It is made anew from the
checkpoint at each start, so nothing of it has to survive.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_PAGES = "PRAGMA cache_size=-32768"
_UNSEEN = "SELECT key FROM content WHERE round < ? {after} ORDER BY key LIMIT 1000"


def open_scratch() -> sqlite3.Connection:
    """An empty database, gone once it is closed."""
    connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    connection.execute(_PAGES)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    # One transaction for good: the end of each one takes time by the number of pages in memory.
    connection.execute("BEGIN")
    return connection


class SessionState(NamedTuple):
    """A session in the state; times are epoch milliseconds."""

    start_ms: int
    end_ms: int


class SessionIndex:
    """The sessions that the state holds, by key: a session that grows or is merged changes its place in the
    log."""

    def __init__(self) -> None:
        self._database = open_scratch()
        self._database.execute(
            "CREATE TABLE session (plain BLOB, start_ms INTEGER, end_ms INTEGER, PRIMARY KEY (plain, start_ms)) "
            "WITHOUT ROWID"
        )

    def end_ms(self, plain: bytes, start_ms: int) -> int | None:
        """When the session ends that starts then; None if there is none."""
        found = self._database.execute(
            "SELECT end_ms FROM session WHERE plain = ? AND start_ms = ?", (plain, start_ms)
        ).fetchone()
        return None if found is None else int(found[0])

    def put(self, plain: bytes, session: SessionState) -> None:
        """Add a session, or give it another end."""
        self._database.execute("INSERT OR REPLACE INTO session VALUES (?, ?, ?)", (plain, *session))

    def remove(self, plain: bytes, start_ms: int) -> None:
        """Remove a session."""
        self._database.execute("DELETE FROM session WHERE plain = ? AND start_ms = ?", (plain, start_ms))

    def has_within(self, plain: bytes, session: SessionState) -> bool:
        """Whether another session of the key includes all of this one: it was merged into it."""
        return (
            self._database.execute(
                "SELECT 1 FROM session WHERE plain = ? AND start_ms <= ? AND end_ms >= ? LIMIT 1",
                (plain, session.start_ms, session.end_ms),
            ).fetchone()
            is not None
        )

    def clear(self) -> None:
        """Remove all."""
        self._database.execute("DELETE FROM session")


class Kept(NamedTuple):
    """A value that expires, or a list that may be appended to; ``next_expiry_ms`` is the earliest of its
    elements."""

    value: bytes
    next_expiry_ms: int | None


class ValueIndex:
    """Values by key, with the time from which Spark hides them."""

    def __init__(self) -> None:
        self._database = open_scratch()
        self._database.execute(
            "CREATE TABLE kept (plain BLOB PRIMARY KEY, value BLOB, next_expiry_ms INTEGER) WITHOUT ROWID"
        )
        self._database.execute("CREATE INDEX by_expiry ON kept (next_expiry_ms)")

    def get(self, plain: bytes) -> bytes | None:
        """The value of a key."""
        found = self._database.execute("SELECT value FROM kept WHERE plain = ?", (plain,)).fetchone()
        return None if found is None else found[0]

    def put(self, plain: bytes, kept: Kept) -> None:
        """Set a key's value and expiry."""
        self._database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (plain, *kept))

    def remove(self, plain: bytes) -> None:
        """Remove a key."""
        self._database.execute("DELETE FROM kept WHERE plain = ?", (plain,))

    def expired(self, now_ms: int) -> list[tuple[bytes, bytes]]:
        """The keys and values of which something has expired."""
        return self._database.execute(
            "SELECT plain, value FROM kept WHERE next_expiry_ms <= ?", (now_ms,)
        ).fetchall()

    def next_expiry_ms(self) -> int | None:
        """When the next value expires; None if none does."""
        (found,) = self._database.execute("SELECT min(next_expiry_ms) FROM kept").fetchone()
        return None if found is None else int(found)

    def clear(self) -> None:
        """Remove all."""
        self._database.execute("DELETE FROM kept")


class ContentIndex:
    """What the log of a store holds, by key: the digest of each value, and whether the state has the key."""

    def __init__(self) -> None:
        self._database = open_scratch()
        self._database.execute(
            "CREATE TABLE content (key BLOB PRIMARY KEY, digest BLOB, round INTEGER) WITHOUT ROWID"
        )
        self._round = 0
        self.removed = 0
        """How many keys were removed since a comparison began."""

    def load(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add keys with the digests of their values, in the log's order; None removes a key."""
        for key, digest in changes:
            if digest is None:
                self._database.execute("DELETE FROM content WHERE key = ?", (key,))
            else:
                self._database.execute(
                    "INSERT OR REPLACE INTO content VALUES (?, ?, ?)", (key, digest, self._round)
                )

    def begin(self) -> None:
        """Begin to compare with a state: no key was seen in it so far."""
        self._round += 1
        self.removed = 0

    def changes(self, key: bytes, digest: bytes) -> bool:
        """Note that the state has the key; whether the log has another value or none."""
        found = self._database.execute("SELECT digest FROM content WHERE key = ?", (key,)).fetchone()
        self._database.execute("INSERT OR REPLACE INTO content VALUES (?, ?, ?)", (key, digest, self._round))
        return found is None or found[0] != digest

    def unseen(self) -> Iterator[bytes]:
        """The keys that the state does not have; those that were returned may be removed meanwhile."""
        page = self._database.execute(_UNSEEN.format(after=""), (self._round,)).fetchall()
        while page:
            yield from (key for (key,) in page)
            after = (self._round, page[-1][0])
            page = self._database.execute(_UNSEEN.format(after="AND key > ?"), after).fetchall()

    def remove(self, key: bytes) -> None:
        """Remove a key."""
        self.removed += 1
        self._database.execute("DELETE FROM content WHERE key = ?", (key,))

    def is_empty(self) -> bool:
        """Whether the log holds nothing."""
        return self._database.execute("SELECT 1 FROM content LIMIT 1").fetchone() is None
