"""What librdkafka's clients log, a consumer for a moment, and the clients' disposal in threads of their own.

The destruction of one may block for ever if a broker went away at the wrong moment (librdkafka#5476). In a thread
of the same client it ends the process; Python's garbage collector may run there, in a callback.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from forebay.logs import LogThrottle
from forebay_changelog.kafka.url import KafkaUrl

log = logging.getLogger(__name__)

CLIENT_LOG = logging.getLogger("forebay.kafka")
_PATIENCE_S = 5.0
_MESSAGES = 10_000
_POLL_S = 0.1


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
        destroy_elsewhere([self.__dict__.pop("client", None)])


def destroy_elsewhere(held: list[object]) -> None:
    """Drop a client, to which only this list refers, in a thread of its own; for ``__del__`` of its holder."""
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


@contextlib.contextmanager
def reading(url: KafkaUrl) -> Iterator[Consumer]:
    """A consumer of committed records, for ``messages_to_end``."""
    consumer = Consumer(
        url.librdkafka(
            group_id="forebay-claims",
            enable_auto_commit=False,
            isolation_level="read_committed",
            enable_partition_eof=True,
            auto_offset_reset="earliest",
        ),
        logger=CLIENT_LOG,
    )
    try:
        yield consumer
    finally:
        close(consumer)


def messages_to_end(consumer: Consumer, start: TopicPartition, patience_s: float) -> Iterator[list[Message]]:
    """The messages of a partition from an offset on, up to its end.

    Raises ``KafkaException``, also if nothing arrives for ``patience_s``.
    """
    consumer.assign([start])
    progressed_s = time.monotonic()
    while time.monotonic() - progressed_s < patience_s:
        found = consumer.consume(_MESSAGES, _POLL_S)
        errors = [error for message in found if (error := message.error()) is not None]
        for error in errors:
            # The group is only nominal: no right to it is needed.
            if error.code() not in (KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED):
                raise KafkaException(error)
        messages = [message for message in found if message.error() is None]
        if messages:
            yield messages
            # What is done with them may take any time.
            progressed_s = time.monotonic()
        if any(error.code() == KafkaError._PARTITION_EOF for error in errors):
            return
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
