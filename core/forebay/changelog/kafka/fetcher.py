"""What fetches a consumer's partitions: an interface to either client library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from forebay.changelog.base import Record
from forebay.task_ids import TopicPartition


class Fetched(NamedTuple):
    """What came of one partition since the last time, all of it read-committed."""

    records: list[Record]
    position: int = 0
    """Next offset to read, past markers, aborted and compacted records as far as that is known; 0 if unknown."""
    end: int | None = None
    """The offset beyond which a response, at least as new as those with the records, could not read."""
    newest_epoch_ms: int = 0
    """The timestamp of the last record, or the largest of the batch that it came in; 0 if unknown."""
    lost: bool = False
    """The position asked for is not in the log; nothing more is fetched."""
    truncated: bool = False
    """It is lost because what was read before it is no longer what the log contains there (KIP-320)."""
    error: str | None = None
    """Why a request failed."""
    lasting: bool = False
    """Whether such errors do not go away by themselves."""
    leader_epoch: int = -1
    """That of the leader that appended the last record, -1 if unknown."""


class Fetcher(Protocol):
    """Fetches partitions ahead of who takes the records. Used by one thread."""

    def start(self, topic_partition: TopicPartition, offset: int) -> None:
        """Fetch a partition from this offset on."""
        ...

    def stop(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition; what was fetched and not taken is dropped."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to take, or after the time-out."""
        ...

    def take(self, most_records: int) -> Mapping[TopicPartition, Fetched]:
        """What is there, without waiting: at most this many records of all partitions together."""
        ...

    def end_at_last_response(self, topic_partition: TopicPartition) -> int:
        """The high watermark of the newest response, 0 if there was none."""
        ...

    def close(self, *, wait: bool = True) -> None:
        """Close the connections; with ``wait`` off, nothing is waited for that may take longer than a second."""
        ...
