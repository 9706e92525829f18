"""Where librdkafka's own log lines go: to the logger ``forebay.kafka``, the same kind at most once a minute."""

from __future__ import annotations

import logging
import time

_QUIET_FOR_S = 60.0


class _Repeats(logging.Filter):
    """Drops a line whose kind was logged recently: an unreachable broker would fill the disk with one message."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # Lines begin with their kind, such as FAIL; the rest contains varying ports and durations.
        kind = record.getMessage().partition(" ")[0]
        now = time.monotonic()
        if now - self._logged_at.get(kind, -_QUIET_FOR_S) < _QUIET_FOR_S:
            return False
        self._logged_at[kind] = now
        return True


CLIENT_LOG = logging.getLogger("forebay.kafka")
CLIENT_LOG.addFilter(_Repeats())
