"""Says which partitions a transaction holds back that its producer neither commits nor aborts.

Why it names Kafka's command instead of the producer: neither librdkafka 2.16 nor aiokafka 0.14 can ask which it is
(DescribeProducers, KIP-664).
"""

from __future__ import annotations

import logging

from forebay.task_ids import TopicPartition
from forebay_worker.tasks.replica import Replica

log = logging.getLogger(__name__)

LONG_OPEN_MS = 10_000.0
"""A transaction that is open for longer than this is logged."""


class OpenTransactions:
    """Logs once that a transaction stays open at the end of a partition, and that it was ended."""

    def __init__(self) -> None:
        self._logged: set[TopicPartition] = set()

    def note(self, replica: Replica, now_boot_ms: float) -> None:
        """Look at a replica's newest observation of its log's end."""
        tp, open_ms = replica.topic_partition, replica.open_transaction_ms(now_boot_ms)
        if open_ms < LONG_OPEN_MS:
            if tp in self._logged:
                self._logged.discard(tp)
                log.info("%s: the transaction that held it back was ended", tp)
        elif tp not in self._logged:
            self._logged.add(tp)
            log.warning(
                "%s: a transaction has been open at offset %s for %.0f s: the %s offsets from there on are not "
                "served until its producer ends it, and time lag grows. kafka-transactions.sh describe-producers "
                "--topic %s --partition %d names the producer; find-hanging and abort end what was left open.",
                tp,
                replica.view.progress.end_offset,
                open_ms / 1000,
                replica.view.progress.open_transaction_records,
                *tp,
            )

    def forget(self, topic_partition: TopicPartition) -> None:
        """A partition that is no longer followed."""
        self._logged.discard(topic_partition)
