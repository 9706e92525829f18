"""A topic of a store with ``latest_by`` on a real broker: what its compaction keeps."""

import time

import pytest

from forebay.record_orders import split_order, with_order
from forebay_changelog.record_headers import DELETED_HEADER, HEARTBEAT_HEADER, heartbeat_key
from tests.changelog.kafka.test_changelog import COMPACTED_AT_ONCE
from tests.support.kafka_topics import Reader, Writer, made, spec

pytestmark = pytest.mark.kafka


def test_kafka_compaction_keeps_the_highest_order(changelog, admin):
    """The record of the highest order stays even where it is a tombstone."""
    store = spec(latest_by="lsn")
    tp = made(admin, store, COMPACTED_AT_ONCE)
    writer = Writer(changelog, tp)
    writer.send((with_order(b"a", 5), b"5"), (with_order(b"a", 9), b"9"), (with_order(b"a", 7), b"7"))
    writer.send((with_order(b"b", 3), b"3"))
    writer.send((with_order(b"b", 8), b""), headers=[(DELETED_HEADER, b"")])
    writer.send((with_order(b"b", -4), b""), headers=[(DELETED_HEADER, b"")])
    writer.send((with_order(b"b", 4), b"4"), (b"no order", b"1"))
    writer.send((heartbeat_key("w"), b"{}"), headers=[(HEARTBEAT_HEADER, b"")])
    assert changelog.compact(store) == 5
    assert changelog.compact(store) == 0

    def values() -> dict[bytes, list[tuple[int, bytes | None]]]:
        found: dict[bytes, list[tuple[int, bytes | None]]] = {b"a": [], b"b": []}
        with Reader(changelog, tp) as reader:
            for _, key, value, _, heartbeat in reader.read(changelog.end_offsets([tp])[tp]):
                if not heartbeat and key[:1] in found:
                    plain, order = split_order(key)
                    found[plain].append((order, value))
        return found

    assert values()[b"b"][:4] == [(3, b"3"), (8, None), (-4, None), (4, b"4")]
    until = time.monotonic() + 60
    while values() != {b"a": [(9, b"9")], b"b": [(8, None)]}:
        assert time.monotonic() < until, values()
        # The active segment is never compacted; a new one starts once a record is older.
        writer.send((heartbeat_key("w"), b"{}"), headers=[(HEARTBEAT_HEADER, b"")])
