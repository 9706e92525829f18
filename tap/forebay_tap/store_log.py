"""A store's log as a tap writes it and compares it with state: under one name, while it has what was written."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from forebay.errors import ChangelogError
from forebay.store_spec import StoreSpec
from forebay_changelog import Changelog
from forebay_changelog.log_reader import records_to_end
from forebay_tap.batch_rows import BatchRows
from forebay_tap.conversion import Conversion, StoreRecord
from forebay_tap.lineage import TapPosition, differ, position_in_all
from forebay_tap.scratch import ContentIndex
from forebay_tap.spark_checkpoint.changes import StateEntry

log = logging.getLogger(__name__)

_IDENTITY_DIGITS = 16
_DIGEST_BYTES = 8


class LogReplaced(Exception):
    """The log was reset or recreated, or a partition of it was lost and recreated: it lacks what was written."""


class StoreLog:
    """The log of one store, written by one tap at a time. Methods raise ``ChangelogError``."""

    def __init__(
        self, changelog: Changelog, spec: StoreSpec, writer: str, on_written: Callable[[int], None]
    ) -> None:
        self._changelog = changelog
        self._spec = spec
        self._writer = writer
        self._on_written = on_written
        self.identity = ""
        """Identifies the log that is written, and all of its partitions; '' before ``open``."""

    def open(self) -> None:
        """Write to the log as it is now, whatever was written to an earlier one."""
        self.identity = self._identity()

    def require_same(self) -> None:
        """Raise ``LogReplaced`` unless the log is still the one that was opened."""
        if self._identity() != self.identity:
            raise LogReplaced("the log was reset, or a partition of it was lost")

    def last_position(self) -> TapPosition | None:
        """The position that the writer's newest heartbeat states; None if it has written none, or was retired.

        It has no lineage if a partition lacks that heartbeat, and so has lost records.
        """
        topic, writer = self._spec.topic, self._writer
        heartbeat = self._changelog.last_heartbeat(topic, writer)
        if heartbeat is None:
            return None
        beats = self._changelog.last_heartbeats(topic, writer)
        if differ(beats) and beats == self._changelog.last_heartbeats(topic, writer):
            # Nobody writes meanwhile.
            return position_in_all(beats)
        return TapPosition.of(heartbeat)

    def last_position_of(self, checkpoint_id: str, *, take_over: bool) -> TapPosition | None:
        """As ``last_position``, if it is that of this checkpoint.

        Another's is refused with ``ChangelogError``. To ``take_over`` from it is to have nothing of the state yet.
        """
        written, name = self.last_position(), self._spec.name
        if written is None or written.checkpoint_id == checkpoint_id:
            return written
        if not take_over:
            raise ChangelogError(
                f"The log of {name!r} is written by the query {written.checkpoint_id}, not by {checkpoint_id}, "
                "whose checkpoint this is. Choose another store, or empty the log: forebay changelog reset "
                f"{name}. 'forebay spark follow' and 'bootstrap' replace its content with --take-over."
            )
        log.warning("%s: the query %s is superseded as its writer", name, written.checkpoint_id)
        return replace(written, lineage=None, filling=True)

    def content(self) -> ContentIndex:
        """What the log holds now."""
        content = ContentIndex()
        records = records_to_end(self._changelog, self._spec)
        content.load((key, None if value is None else value_digest(value)) for _, (_, key, value, *_) in records)
        return content

    def other_writers(self) -> list[str]:
        """Who else writes to the log."""
        return sorted(self._changelog.writers(self._spec.topic) - {self._writer})

    def require_own(self, *, take_over: bool) -> None:
        """Raise ``ChangelogError`` if a copy may delete what others wrote.

        That is so while the log has another writer. Before this one has written, every row is another's: with
        ``take_over`` those may go.
        """
        name, others = self._spec.name, self.other_writers()
        if others:
            raise ChangelogError(
                f"The log of {name!r} is also written by {', '.join(others)}: a copy of the state would delete "
                "what the state does not have of it. Give the query a store of its own, or declare on_removal = "
                f'"keep" in its spark_state. If the writer is gone for good: forebay changelog retire-writer '
                f"{name} {others[0]}."
            )
        is_first = not take_over and self.last_position() is None
        if is_first and not self.content().is_empty():
            raise ChangelogError(
                f"The log of {name!r} has rows that {self._writer!r} has not written, such as those of a fill or "
                "of a writer that was retired: a copy of the state would delete what the state does not have of "
                f'them. Declare on_removal = "keep" in its spark_state to keep them, or empty the log: forebay '
                f"changelog reset {name}. 'forebay spark follow' and 'bootstrap' replace them with --take-over."
            )

    def write(self, position: TapPosition, rows: BatchRows, *, batch_id: int | None) -> None:
        """Append rows, and a heartbeat that states the position after them; raises ``LogReplaced``."""
        self.require_same()
        self._changelog.append_batch(
            self._spec.topic,
            writer=self._writer,
            query_id=position.query_id,
            batch_id=batch_id,
            rows=rows.by_partition(),
            heartbeat=position.heartbeat(None).value(),
        )
        self._on_written(rows.count)

    def beat(self, position: TapPosition, as_of_ms: int | None) -> None:
        """Append a heartbeat: the source is in the log up to a time, as far as that is known."""
        self._changelog.append_heartbeat(
            self._spec.topic,
            writer=self._writer,
            query_id=position.query_id,
            value=position.heartbeat(as_of_ms).value(),
        )

    def _identity(self) -> str:
        identities = self._changelog.identities(self._spec.topic).values()
        return hashlib.sha256(" ".join(identities).encode()).hexdigest()[:_IDENTITY_DIGITS]


def value_digest(value: bytes) -> bytes:
    """Identifies a value among those of one key."""
    return hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()


def content_differences(
    conversion: Conversion,
    content: ContentIndex,
    partitions: Iterable[Iterable[StateEntry]],
    now_ms: Callable[[], int],
    is_withdrawn: Callable[[bytes], bool],
) -> Iterator[StoreRecord]:
    """The records that make a log's content equal to what the partitions of a state hold, in which it is noted.

    What the state does not have is deleted if the conversion says so, or if it is withdrawn.
    """
    for entries in partitions:
        for record in conversion.load(entries, now_ms()):
            _, log_key, value = record
            if value is not None and content.changes(log_key, value_digest(value)):
                yield record
    keys = conversion.mapping.spec.stored_keys
    for key in content.unseen():
        if conversion.is_gone(key) or is_withdrawn(key):
            content.remove(key)
            yield keys.split_changelog(key, 0).plain, key, None
