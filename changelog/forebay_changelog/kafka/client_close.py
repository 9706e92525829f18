"""What librdkafka's clients log, and their disposal in threads of their own.

The destruction of one may block for ever if a broker went away at the wrong moment (librdkafka#5476). In a thread
of the same client it ends the process; Python's garbage collector may run there, in a callback.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AdminClient

from forebay.logs import LogThrottle

log = logging.getLogger(__name__)

CLIENT_LOG = logging.getLogger("forebay.kafka")
_PATIENCE_S = 5.0


class _Once(logging.Filter):
    """Drops a line whose kind was logged recently: an unreachable broker would fill the disk with one message."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = LogThrottle()

    def filter(self, record: logging.LogRecord) -> bool:
        # Lines begin with their kind, such as FAIL; the rest contains varying ports and durations.
        return self._throttle.allow(record.getMessage().partition(" ")[0])


CLIENT_LOG.addFilter(_Once())


class Admin:
    """An admin client that is destroyed in a thread of its own, wherever the last reference to this is dropped.

    ``on_error`` must not refer to what holds this, which would leave both to the garbage collector.
    """

    def __init__(self, config: Mapping[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        self.client = AdminClient(dict(config), error_cb=on_error, logger=CLIENT_LOG)

    def __del__(self) -> None:
        held = [self.__dict__.pop("client", None)]
        # As the process ends, no other thread runs. One of ``threading`` would be waited for until it runs, maybe
        # with a lock held that it needs: the garbage collector may be at work anywhere.
        if not sys.is_finalizing():
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(held.clear, ())


def close(consumer: Consumer, patience_s: float = _PATIENCE_S) -> None:
    """Close a consumer; wait until that is done, but not for longer than this."""
    thread = threading.Thread(target=consumer.close, name="forebay-kafka-close", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # There is none to be had.
        consumer.close()
        return
    thread.join(patience_s)
    if patience_s and thread.is_alive():
        log.warning("a Kafka client is still not closed after %.0f s; it is left to itself", patience_s)
