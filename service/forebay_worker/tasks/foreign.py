"""Records of foreign stores: written by others, so held against the store's codecs before they are applied."""

from __future__ import annotations

from typing import NamedTuple

from forebay.changelog import Batch, Record
from forebay.errors import ForebayError
from forebay.topology import StoreSpec


class BadRecord(ForebayError):
    """A record of a foreign store that its codecs cannot read; applying stops there unless it skips them."""


class Fitting(NamedTuple):
    """What of a batch can be applied."""

    batch: Batch
    skipped: int
    """How many records were left out."""
    stopped_by: BadRecord | None
    """The record before which the batch was cut."""


def fitting(spec: StoreSpec, batch: Batch) -> Fitting:
    """A foreign store's batch without its bad records, or, as the store says, cut before the first of them."""
    bad = [(number, fault) for number, record in enumerate(batch.records) if (fault := _fault(spec, record))]
    if not bad:
        return Fitting(batch, 0, None)
    if spec.on_bad_value == "skip":
        numbers = {number for number, _ in bad}
        kept = [record for number, record in enumerate(batch.records) if number not in numbers]
        return Fitting(batch._replace(records=kept), len(bad), None)
    first, fault = bad[0]
    offset = batch.records[first][0]
    topic, partition = batch.topic_partition
    error = BadRecord(
        f"The record at offset {offset} of {topic!r}, partition {partition}, does not fit the store "
        f'{spec.name!r}: {fault}. Set on_bad_value = "skip" on the store to leave such records out.'
    )
    return Fitting(batch._replace(records=batch.records[:first], position=offset), 0, error)


def _fault(spec: StoreSpec, record: Record) -> str | None:
    """What is wrong with a record, None if nothing is."""
    _, key, value, timestamp_ms, heartbeat = record
    if heartbeat:
        return None
    # Kafka lets producers leave the key out.
    if key is None:
        return "it has no key"  # type: ignore[unreachable]
    try:
        plain = spec.stored_keys.split_changelog(key, timestamp_ms).plain
    except ValueError as error:
        return str(error)
    fault = spec.key_codec.fault(plain)
    if fault is not None:
        return f"its key {key[:40]!r} is no {spec.key} key: {fault}"
    fault = None if value is None else spec.value_codec.fault(value)
    return None if fault is None or value is None else f"its value {value[:40]!r} is no {spec.value}: {fault}"
