"""Lists of one worker: how much they scan per page, and which times they return."""

import asyncio
import base64
import itertools
import json
import random
import struct
from dataclasses import replace

import msgspec
import pytest

from forebay.clock import boot_ms
from forebay.errors import BadParameter, NoReplica, NotReady
from forebay.event_loop_turns import in_turns
from forebay.position import Position, encode_position, log_digest
from forebay.state_store import CommittedOffset
from forebay.stored_values import stamp
from forebay.task_ids import TopicPartition
from forebay.wire.parameters import ReadParameters, parse_parameters
from forebay.wire.scans import SCAN_ROUTES, Cursor, ScanRoute, make_scan
from forebay_web.large_answers import LargeAnswer
from forebay_web.routes import READ_ROUTES
from forebay_worker.reads import scans
from forebay_worker.reads.admission import Admission, Refused
from forebay_worker.reads.scans import Scans
from tests.support.held_reads import IN_MEMORY, held

SIZE_MS = 1_000


async def listed(admission: Admission, items: str, query: str, key: bytes | None = None) -> dict[str, object]:
    """A list of a key, or over all keys."""
    keyed = key is not None
    route: ScanRoute = next(route for route in SCAN_ROUTES if route.items == items and route.keyed is keyed)
    known = next(read.parameters for read in READ_ROUTES if read.scan == route)
    parameters = parse_parameters(query.encode(), known | {"partition"})
    answer = await Scans(admission, IN_MEMORY).answer(route, "counts", key, parameters, frames=False)
    return json.loads(b"".join(answer.parts) if isinstance(answer, LargeAnswer) else answer.body)


async def test_sparse_list_scans_a_bounded_part_per_page(tmp_path):
    """A page that finds little ends with a cursor."""
    admission, replica = held(tmp_path, kind="window", window_size_ms=SIZE_MS, retention_ms=10**9)
    for number in range(30_000):
        replica.view.store.put(replica.spec.stored_keys.stored(b"k%05d" % number, number), stamp(5_000) + b"1")
    replica.view.store.commit({TopicPartition(replica.spec.topic, 0): CommittedOffset(1, 1)})
    scanned = 0
    scan = replica.view.store.scan

    def counted(start: bytes, end: bytes, *, reverse: bool = False):
        nonlocal scanned
        scanned = 0
        for pair in scan(start, end, reverse=reverse):
            scanned += 1
            yield pair

    replica.view.store.scan = counted
    query, pages, found = "from=29990&to=29995", 0, []
    while True:
        document = await listed(admission, "windows", query)
        assert scanned <= 10_500
        pages += 1
        found += [window["start_ms"] for window in document["windows"]]
        if document["next"] is None:
            break
        query = f"from=29990&to=29995&cursor={document['next']}"
    assert found == list(range(29990, 29995))
    assert pages >= 3


@pytest.mark.parametrize("took_ms", [500, 5_000])
async def test_list_out_of_bounds_while_reading_is_rejected(tmp_path, monkeypatch, took_ms):
    """The time that reading takes counts in the lag of every partition."""
    _, first = held(tmp_path / "0")
    admission, second = held(tmp_path / "1", partition=1)
    admission._tasks.replicas["counts", 0] = first
    passed_ms, scan = 0, second.view.store.scan

    def slow(start: bytes, end: bytes, *, reverse: bool = False):
        nonlocal passed_ms
        passed_ms = took_ms
        return scan(start, end, reverse=reverse)

    second.view.store.scan = slow
    monkeypatch.setattr(scans, "boot_ms", lambda: boot_ms() + passed_ms)
    document = await listed(admission, "entries", "max_time_lag_ms=3000")
    if took_ms < 3_000:
        assert all(source["lag"]["time_lag_ms"] >= took_ms for source in document["partitions"])
    else:
        assert (document["status"], document["tolerance"]) == (412, {"max_time_lag_ms": 3_000})
        assert document["lag"]["time_lag_ms"] >= took_ms


@pytest.mark.parametrize("key", [None, b"k"])
async def test_a_cursor_of_another_partition_is_refused(tmp_path, key):
    """What that partition has before the cursor would be left out without a word."""
    store = {"kind": "window", "window_size_ms": SIZE_MS, "retention_ms": 10**9, "partitioner": "unknown"}
    _, first = held(tmp_path / "0", **store)
    admission, second = held(tmp_path / "1", partition=1, **store)
    admission._tasks.replicas["counts", 0] = first
    for partition, replica in enumerate((first, second)):
        for time_ms in (7_000, 8_000):
            replica.view.store.put(replica.spec.stored_keys.stored(b"k", time_ms), stamp(5_000) + b"1")
        replica.view.store.commit({TopicPartition(replica.spec.topic, partition): CommittedOffset(1, 1)})
    page = await listed(admission, "windows", "partition=0&limit=2", key)
    following = f"limit=2&cursor={page['next']}"
    with pytest.raises(BadParameter, match=r"of another partition than 1\. Repeat partition as it was") as refused:
        await listed(admission, "windows", f"partition=1&{following}", key)
    assert refused.value.members == {"parameter": "cursor"}
    [last] = (await listed(admission, "windows", f"partition=0&{following}", key))["windows"]
    assert last["start_ms"] == 8_000


async def test_time_range_selects_overlapping_kept_entries(tmp_path):
    chance = random.Random(7)
    for items, kind in (("windows", "window"), ("sessions", "session")):
        settings = {"window_size_ms": SIZE_MS} if kind == "window" else {"gap_ms": SIZE_MS}
        admission, replica = held(tmp_path / kind, kind=kind, retention_ms=3 * SIZE_MS, **settings)
        times = {(5_000, 6_000) if kind == "window" else (5_000, 5_000)}
        for _ in range(300):
            start = chance.randrange(-9_000, 9_000)
            end = start + (SIZE_MS if kind == "window" else chance.randrange(0, 2_000))
            times.add((start, end))
            stored = (start,) if kind == "window" else (end, start)
            replica.view.store.put(replica.spec.stored_keys.stored(b"k", *stored), stamp(5_000) + b"1")
        replica.view.store.commit({TopicPartition(replica.spec.topic, 0): CommittedOffset(1, 1)})
        replica.publish(stream_time_ms=7_000)
        for start_ms, end_ms in ((-9_000, 9_000), (-100, 4_321), (5_000, 5_001), (6_000, 6_000)):
            document = await listed(admission, items, f"from={start_ms}&to={end_ms}")
            found = {(entry["start_ms"], entry["end_ms"]) for entry in document[items]}
            assert found == {
                (start, end)
                for start, end in times
                if end > 4_000 and start < end_ms and (start >= start_ms if kind == "window" else end >= start_ms)
            }


async def test_a_list_is_admitted_when_its_turn_comes(tmp_path):
    """One that was consistent before the list waited for it may be in the middle of a replay by then."""
    admission, replica = held(tmp_path)
    others = asyncio.create_task(in_turns(range(10), clock=itertools.count().__next__))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(listed(admission, "entries", ""))
    await asyncio.sleep(0)
    replica.publish(restored=False)
    with pytest.raises(Refused) as refusal:
        await waiting
    assert isinstance(refusal.value.problem, NotReady)
    assert await others == list(range(10))


async def test_a_page_of_large_values_ends_early(tmp_path):
    admission, replica = held(tmp_path, kind="window", window_size_ms=SIZE_MS, retention_ms=10**9)
    for number in range(100):
        replica.view.store.put(
            replica.spec.stored_keys.stored(b"k", number), stamp(5_000) + b'"%b"' % (b"x" * (1 << 20))
        )
    replica.view.store.commit({TopicPartition(replica.spec.topic, 0): CommittedOffset(1, 1)})
    document = await listed(admission, "windows", "limit=100")
    assert 4 <= len(document["windows"]) <= 8
    assert document["next"] is not None


async def test_one_keys_list_ignores_other_keys_in_its_cursor(tmp_path):
    admission, replica = held(tmp_path, kind="window", window_size_ms=SIZE_MS, retention_ms=10**9)
    for key in (b"a", b"z"):
        replica.view.store.put(replica.spec.stored_keys.stored(key, 1_000), stamp(5_000) + b'"another key"')
    replica.view.store.commit({TopicPartition(replica.spec.topic, 0): CommittedOffset(1, 1)})
    route = next(route for route in SCAN_ROUTES if route.items == "windows" and route.keyed)
    scan = make_scan(route, replica.spec, b"k", ReadParameters())
    for last in (
        b"",
        b"\x00",
        replica.spec.stored_keys.prefix(b"a"),
        replica.spec.stored_keys.prefix(b"y"),
        b"\xff",
    ):
        for reverse in (False, True):
            futures = ReadParameters(reverse=reverse)
            cursor = Cursor(make_scan(route, replica.spec, b"k", futures).digest, last).encode()
            parameters = replace(futures, cursor=cursor)
            answer = await Scans(admission, IN_MEMORY).answer(route, "counts", b"k", parameters, frames=False)
            assert b"another key" not in answer.body
    with pytest.raises(BadParameter, match="The key is in partition 0, not 1"):
        await Scans(admission, IN_MEMORY).answer(route, "counts", b"k", ReadParameters(partition=1), frames=False)
    raw = msgspec.msgpack.encode((scan.digest, b"\x01", None, (float("inf"),)))
    with pytest.raises(BadParameter, match="cursor is invalid"):
        Cursor.decode(base64.urlsafe_b64encode(raw).decode(), scan)


async def test_missing_partition_stays_missing_on_later_pages(tmp_path):
    admission, second = held(tmp_path / "1", partition=1)
    for key in (b"l", b"m"):
        second.view.store.put(second.spec.stored_keys.prefix(key), stamp(5_000) + b"2")
    second.view.store.commit({})
    first = await listed(admission, "entries", "limit=1&allow_partial=true")
    assert (first["missing"], first["complete"]) == ([0], False)
    _, late = held(tmp_path / "0")
    admission._tasks.replicas["counts", 0] = late  # type: ignore[index]
    following = await listed(admission, "entries", f"limit=1&allow_partial=true&cursor={first['next']}")
    assert [entry["key"] for entry in following["entries"]] == ["l"]
    assert (following["missing"], following["complete"]) == ([0], False)


async def test_worker_without_any_partition_gives_no_partial_list(tmp_path):
    """How far behind it is would be unknown, which meets no bound."""
    admission, _ = held(tmp_path)
    admission._tasks.replicas.clear()  # type: ignore[attr-defined]
    with pytest.raises(NoReplica):
        await listed(admission, "entries", "allow_partial=true&max_record_lag=0")


@pytest.mark.parametrize(
    ("offsets", "missing"),
    [(dict.fromkeys(range(400), 1), []), ({}, [0, 1]), ({}, [2]), ({}, [-1]), ({}, [2**63])],
    ids=["too-many-offsets", "all-missing", "beyond", "negative", "huge"],
)
def test_cursor_that_no_server_issues_is_refused(tmp_path, offsets, missing):
    """One that were read would take others' time, or leave out what nobody knows."""
    admission, _ = held(tmp_path)
    route = next(route for route in SCAN_ROUTES if route.items == "entries" and not route.keyed)
    scan = make_scan(route, replace(admission.spec("counts"), partitions=2), None, ReadParameters())
    at = encode_position(Position(log_digest("log"), offsets))
    cursor = Cursor(scan.digest, b"\x01", at, tuple(missing))
    with pytest.raises(BadParameter, match="cursor is invalid"):
        Cursor.decode(cursor.encode(), scan)
    issued = Cursor(scan.digest, b"\x01", encode_position(Position(log_digest("log"), {1: 2**62})), (0,))
    assert Cursor.decode(issued.encode(), scan) == issued


async def test_undecodable_value_is_not_reported_as_not_ready(tmp_path):
    admission, _ = held(tmp_path, value="double")
    with pytest.raises(struct.error):
        await listed(admission, "entries", "")
