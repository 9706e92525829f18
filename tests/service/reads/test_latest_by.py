"""Reads of a store with ``latest_by``: what has been superseded or deleted is in no answer."""

import json
from pathlib import Path

import pytest

from forebay.state_store import CommittedOffset
from forebay.stored_values import encode_version, stamp
from forebay.task_ids import TopicPartition
from forebay.wire.parameters import ReadParameters
from forebay.wire.scans import SCAN_ROUTES
from forebay_worker.reads.admission import Refused
from forebay_worker.reads.keys import Reads
from forebay_worker.reads.scans import Scans
from forebay_worker.tasks.replica import Replica
from tests.support.held_reads import IN_MEMORY, MEBIBYTE, batch_of, held

ENTRIES = next(route for route in SCAN_ROUTES if route.items == "entries")


def put(replica: Replica, *records: tuple[bytes, int, bytes | None]) -> None:
    for key, order, value in records:
        replica.view.store.put(
            replica.spec.stored_keys.stored(key, order),
            encode_version(None if value is None else stamp(order) + value),
        )
    replica.view.store.commit({TopicPartition(replica.spec.topic, 0): CommittedOffset(1, 1)})


@pytest.mark.parametrize("reverse", [False, True])
async def test_key_is_listed_once_despite_a_higher_order_midway(tmp_path: Path, reverse: bool):
    """The higher order is applied between two pages of the list."""
    admission, replica = held(tmp_path, latest_by="lsn")
    put(replica, *((b"%d" % key, order, b"%d" % order) for key in range(6) for order in range(5)))
    put(replica, (b"2", 9, None), (b"k", 10_000, None))
    scans, cursor, found = Scans(admission, IN_MEMORY), None, []
    while True:
        parameters = ReadParameters(reverse=reverse, limit=2, cursor=cursor)
        document = json.loads((await scans.answer(ENTRIES, "counts", None, parameters, frames=False)).body)
        found += [(entry["key"], entry["value"]) for entry in document["entries"]]
        cursor = document["next"]
        if cursor is None:
            break
        put(replica, *((b"%d" % key, 100, b"100") for key in range(6)))
    # The first page's are as they were then.
    firsts = ["5", "4"] if reverse else ["0", "1"]
    others = ["3", "2", "1", "0"] if reverse else ["2", "3", "4", "5"]
    assert found == [(key, 4) for key in firsts] + [(key, 100) for key in others]


async def test_prefix_lists_exactly_its_keys(tmp_path: Path):
    admission, replica = held(tmp_path, latest_by="lsn")
    put(replica, *((key, 1, b"1") for key in (b"a", b"a\x00", b"a\x00b", b"ab", b"b")), (b"k", 10_000, None))
    for prefix, expected in ((b"a\x00", ["a\0", "a\0b"]), (b"a", ["a", "a\0", "a\0b", "ab"]), (b"c", [])):
        parameters = ReadParameters(prefix=prefix)
        answer = await Scans(admission, IN_MEMORY).answer(ENTRIES, "counts", None, parameters, frames=False)
        assert [entry["key"] for entry in json.loads(answer.body)["entries"]] == expected


def test_highest_order_decides_a_keys_value(tmp_path: Path):
    """A tombstone of the highest order is a miss."""
    admission, replica = held(tmp_path, latest_by="lsn")
    put(replica, (b"a", 2**63 - 1, b"3"), (b"a", 5, b"2"), (b"b", -1, b"1"), (b"b", 7, None))
    reads = Reads(admission, MEBIBYTE, IN_MEMORY)
    read = reads.key("counts", ReadParameters())
    assert json.loads(read.answer(b"a").body)["value"] == 3
    with pytest.raises(Refused, match='has no key "b"'):
        read.answer(b"b")
    results = batch_of(reads, ["a", "b", "a"], ReadParameters()).results
    assert [status for status, _ in results] == [200, 404, 200]
