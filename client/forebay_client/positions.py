"""The positions up to which a session has read."""

from __future__ import annotations

import threading

from forebay.errors import PositionOfAnotherLog
from forebay.position import decode_position, encode_position, later_position
from forebay.wire.scan_pages import joined_position
from forebay_client import fork_safety


class Positions:
    """The latest position read, per store and partition, as a token; threads may share it."""

    def __init__(self) -> None:
        self._tokens: dict[str, dict[int, str]] = {}
        self._lock = threading.Lock()
        fork_safety.renew_on_fork(self)

    def on_fork(self) -> None:
        """A thread that does not exist here may have held the lock."""
        self._lock = threading.Lock()

    def add(self, store: str, token: str) -> None:
        """Record a token, for any partitions; raises ``BadParameter`` if it is not one."""
        position = decode_position(token)
        with self._lock:
            held = self._tokens.setdefault(store, {})
            for partition in position.offsets:
                one = encode_position(position.of(partition))
                held[partition] = later_position(held.get(partition), one) or one

    def get(self, store: str, partition: int | None = None) -> str | None:
        """The token of a partition, or of the whole store; None before anything was read.

        Raises ``PositionOfAnotherLog`` if the partitions belong to different logs, so that no token can cover all.
        """
        with self._lock:
            held = dict(self._tokens.get(store, {}))
        if partition is not None:
            return held.get(partition)
        token = joined_position([{"position": one} for one in held.values()])
        if held and token is None:
            raise PositionOfAnotherLog(
                f"{store!r} was read from several logs, one of them replaced: continue with a new session.",
                store=store,
            )
        return token
