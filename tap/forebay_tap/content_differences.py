"""Where a store's log differs from a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from forebay_tap.conversion import Conversion
from forebay_tap.log_content import value_digest
from forebay_tap.plain_conversion import StoreRecord
from forebay_tap.scratch import ContentIndex
from forebay_tap.spark_checkpoint.changes import StateEntry


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
