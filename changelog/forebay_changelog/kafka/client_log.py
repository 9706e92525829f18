"""Where librdkafka's own log lines go: to the logger ``forebay.kafka``, the same kind at most once a minute."""

from __future__ import annotations

import logging

from forebay.log_throttle import LogThrottle


class _Once(logging.Filter):
    """Drops a line whose kind was logged recently: an unreachable broker would fill the disk with one message."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = LogThrottle()

    def filter(self, record: logging.LogRecord) -> bool:
        # Lines begin with their kind, such as FAIL; the rest contains varying ports and durations.
        return self._throttle.allow(record.getMessage().partition(" ")[0])


CLIENT_LOG = logging.getLogger("forebay.kafka")
CLIENT_LOG.addFilter(_Once())
