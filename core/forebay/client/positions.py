"""The positions that a session has seen."""

from __future__ import annotations

import threading

from forebay.errors import PositionOfAnotherLog
from forebay.position import Position, decode_position, encode_position, later_position
from forebay.rest.lists import joined_position


class Positions:
    """Per store and partition, the latest position that was seen, as a token; threads may share it."""

    def __init__(self) -> None:
        self._tokens: dict[str, dict[int, str]] = {}
        self._lock = threading.Lock()

    def add(self, store: str, token: str) -> None:
        """Note a token, of whichever partitions; raises ``BadParameter`` if it is none."""
        log, offsets = decode_position(token)
        with self._lock:
            held = self._tokens.setdefault(store, {})
            for partition, offset in offsets.items():
                one = encode_position(Position(log, {partition: offset}))
                held[partition] = later_position(held.get(partition), one) or one

    def get(self, store: str, partition: int | None = None) -> str | None:
        """The token of a partition, or of all of the store; None before anything of them was seen.

        Raises ``PositionOfAnotherLog`` where no token can hold all, each partition's log being another's.
        """
        with self._lock:
            held = dict(self._tokens.get(store, {}))
        if partition is not None:
            return held.get(partition)
        token = joined_position([{"position": one} for one in held.values()])
        if held and token is None:
            raise PositionOfAnotherLog(
                f"What was seen of {store!r} is of several logs, one of them replaced: go on with a new session.",
                store=store,
            )
        return token
