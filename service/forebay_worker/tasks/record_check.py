"""Records written by others than the sink: checked against the store's codecs before they are applied."""

from __future__ import annotations

from typing import NamedTuple

from forebay.codecs.values import all_fit, without_headers
from forebay.errors import ForebayError, SchemaUnavailable
from forebay.store_spec import StoreSpec
from forebay.stored_keys import MAX_TIME_MS, MIN_TIME_MS
from forebay_changelog import Batch, Heartbeat, Record


class BadRecord(ForebayError):
    """A record that its store's codecs cannot read; applying stops there unless the store skips them."""


class Fitting(NamedTuple):
    """The part of a batch that can be applied."""

    batch: Batch
    skipped: int
    """How many records were skipped."""
    stopped_by: BadRecord | SchemaUnavailable | None
    """The record before which the batch was cut, or the schema that it has to wait for."""


def fitting(spec: StoreSpec, batch: Batch) -> Fitting:
    """A batch without its bad records, or cut before the first of them, as the store demands.

    Of records that are not declared external, keys are checked as they are stored.
    """
    if not spec.external and all_fit(
        spec.value_codec,
        [value for _, _, value, _, heartbeat in batch.records if value is not None and not heartbeat],
    ):
        return Fitting(batch, 0, None)
    bad, batch, schema = _faults(spec, batch)
    if not bad:
        return Fitting(batch, 0, schema)
    if spec.on_bad_value == "skip":
        numbers = {number for number, _ in bad}
        kept = [record for number, record in enumerate(batch.records) if number not in numbers]
        skipped_to = batch.records[bad[-1][0]][0] + 1
        return Fitting(batch._replace(records=kept, skipped_to=skipped_to), len(bad), schema)
    first, fault = bad[0]
    offset = batch.records[first][0]
    topic, partition = batch.topic_partition
    remedy = 'on_bad_value = "skip"' if spec.external else 'external = true and on_bad_value = "skip"'
    error = BadRecord(
        f"The record at offset {offset} of {topic!r}, partition {partition}, does not fit the store "
        f"{spec.name!r}: {fault}. Set {remedy} on the store to skip such records."
    )
    return Fitting(_up_to(batch, first), 0, error)


def _faults(spec: StoreSpec, batch: Batch) -> tuple[list[tuple[int, str]], Batch, SchemaUnavailable | None]:
    """What is wrong with which records, by their places; the batch, cut before a record whose schema is not known
    yet; and why it is not."""
    bad: list[tuple[int, str]] = []
    for number, record in enumerate(batch.records):
        try:
            fault = _fault(spec, record)
        except SchemaUnavailable as error:
            return bad, _up_to(batch, number), error
        if fault is not None:
            bad.append((number, fault))
    return bad, batch, None


def _up_to(batch: Batch, number: int) -> Batch:
    """A batch that ends before one of its records: the log goes on there, but a replica does not."""
    return batch._replace(records=batch.records[:number], position=batch.records[number][0], end_reached=False)


def up_to_bad_record(spec: StoreSpec, batch: Batch) -> Fitting:
    """A batch of a store that is not external, cut before its first record whose key the store cannot store, or
    that is a malformed heartbeat."""
    for number, record in enumerate(batch.records):
        offset, key, value, _, heartbeat = record
        fault = _heartbeat_fault(key, value) if heartbeat else _key_fault(spec, record)
        if fault is not None:
            remedy = " If others than forebay write the topic, set external = true on the store."
            error = BadRecord(
                f"The record at offset {offset} of {spec.topic!r} does not fit the store {spec.name!r}: "
                f"{fault}.{remedy if spec.latest_by is None else ''}"
            )
            return Fitting(_up_to(batch, number), 0, error)
    return Fitting(batch, 0, None)


def _fault(spec: StoreSpec, record: Record) -> str | None:
    """What is wrong with a record, None if nothing is."""
    _, key, value, _, heartbeat = record
    if heartbeat:
        return _heartbeat_fault(key, value)
    fault = _key_fault(spec, record)
    if fault is not None or value is None:
        return fault
    fault = spec.value_codec.fault(value)
    if fault is None:
        return None
    return f"its value {without_headers(spec.value_codec, value)[:40]!r} is not a valid {spec.value}: {fault}"


def _heartbeat_fault(key: bytes, value: bytes | None) -> str | None:
    try:
        key.decode()
        if value is not None:
            Heartbeat.parse(value)
    except ValueError as error:
        return str(error)
    return None


def _key_fault(spec: StoreSpec, record: Record) -> str | None:
    _, key, _, timestamp_ms, _ = record
    # Kafka lets producers omit the key.
    if key is None:
        return "it has no key"  # type: ignore[unreachable]
    if not MIN_TIME_MS <= timestamp_ms <= MAX_TIME_MS:
        return f"its time {timestamp_ms} does not fit into 64 bits"
    try:
        plain = spec.stored_keys.split_changelog(key, timestamp_ms).plain
    except ValueError as error:
        return str(error)
    fault = spec.key_codec.fault(plain)
    return None if fault is None else f"its key {key[:40]!r} is not a valid {spec.key} key: {fault}"
