"""A list that may lack what its log cannot prove says so, until that would have expired."""

import json
from typing import Any

import pytest

from forebay.clock import boot_ms
from forebay.lag import EndOffset
from forebay.state_store import CommittedOffset
from forebay.unproven import UnprovenRange
from forebay.wire.parameters import parse_parameters
from forebay.wire.scans import SCAN_ROUTES
from forebay_changelog import Batch, Heartbeat
from forebay_changelog.record_headers import heartbeat_key
from forebay_web.routes import READ_ROUTES
from forebay_worker.reads.admission import Admission
from forebay_worker.reads.scans import Scans
from forebay_worker.tasks.apply import apply_batch, resume
from forebay_worker.tasks.replica import Replica
from tests.support.held_reads import IN_MEMORY, held

WINDOW = {"kind": "window", "window_size_ms": 1_000, "retention_ms": 100_000}
SESSION = {"kind": "session", "gap_ms": 1_000, "retention_ms": 100_000}
AWAY = UnprovenRange(10_000, 20_000)


def applied(replica: Replica, *records: tuple[bytes, bytes | None]) -> None:
    first = replica.view.progress.position
    numbered = [
        (first + at, key, value, 10**9, key.startswith(b"\x00")) for at, (key, value) in enumerate(records)
    ]
    end = first + len(records)
    apply_batch(
        replica,
        Batch(replica.topic_partition, numbered, end, False, EndOffset(end, boot_ms()), 0, 0, "log"),
    )


def beat(*unproven: UnprovenRange, writer: str = "tap") -> tuple[bytes, bytes]:
    return heartbeat_key(writer), Heartbeat(None, "q", 1, unproven=unproven).value()


def window(start_ms: int) -> bytes:
    return b"k" + start_ms.to_bytes(8, "big")


async def listed(admission: Admission, query: str = "", kind: str = "window", key: bytes | None = None) -> Any:
    [route] = [one for one in SCAN_ROUTES if one.kind == kind and one.keyed == (key is not None)]
    known = next(read.parameters for read in READ_ROUTES if read.scan == route)
    parameters = parse_parameters(query.encode(), known | {"partition"})
    answer = await Scans(admission, IN_MEMORY).answer(route, "counts", key, parameters, frames=False)
    return json.loads(answer.body)


@pytest.mark.parametrize("key", [None, b"k"])
async def test_list_says_in_which_range_it_may_lack_windows(tmp_path, key):
    admission, replica = held(tmp_path, **WINDOW)
    assert (await listed(admission, key=key))["complete"] is True
    applied(replica, beat(AWAY), (window(30_000), b"1"))
    page = await listed(admission, key=key)
    assert page["complete"] is False
    assert page["unproven"] == [{"from_ms": 10_000, "to_ms": 20_000}]
    assert [item["start_ms"] for item in page["windows"]] == [5_000, 30_000]
    assert page["partitions"][0].keys() == {"partition", "position", "role", "host", "lag"}


@pytest.mark.parametrize(
    ("query", "complete"),
    [
        ("to=9001", True),
        ("to=9002", False),
        ("from=19000", False),
        ("from=19001", True),
        ("from=12000&to=13000", False),
    ],
)
async def test_list_of_another_time_is_complete(tmp_path, query, complete):
    """Of a window that ends at 10,000 the last value is known, and so it is of one that ends after 20,000."""
    admission, replica = held(tmp_path, **WINDOW)
    applied(replica, beat(AWAY))
    page = await listed(admission, query)
    assert page["complete"] is complete
    assert ("unproven" in page) is not complete


@pytest.mark.parametrize(("query", "complete"), [("to=1000", False), ("from=20000", False), ("from=20001", True)])
async def test_session_may_have_begun_long_before_it_ended_unseen(tmp_path, query, complete):
    admission, replica = held(tmp_path, **SESSION)
    applied(replica, beat(AWAY))
    assert (await listed(admission, query, "session"))["complete"] is complete


async def test_what_has_expired_is_unproven_no_more(tmp_path):
    admission, replica = held(tmp_path, **WINDOW)
    applied(replica, beat(UnprovenRange(None, 20_000)), (window(110_000), b"1"))
    assert (await listed(admission))["unproven"] == [{"from_ms": 11_000, "to_ms": 20_000}]
    applied(replica, (window(118_999), b"1"))
    assert (await listed(admission))["unproven"] == [{"from_ms": 19_999, "to_ms": 20_000}]
    applied(replica, (window(119_000), b"1"))
    assert (await listed(admission))["complete"] is True


async def test_each_writer_has_unproven_ranges_of_its_own(tmp_path):
    admission, replica = held(tmp_path, **WINDOW)
    applied(replica, beat(AWAY), beat(UnprovenRange(15_000, 30_000), writer="other"))
    assert (await listed(admission))["unproven"] == [{"from_ms": 10_000, "to_ms": 30_000}]
    applied(replica, beat())
    assert (await listed(admission))["unproven"] == [{"from_ms": 15_000, "to_ms": 30_000}]
    applied(replica, (heartbeat_key("other"), None))
    assert (await listed(admission))["complete"] is True


def test_entry_is_not_withdrawn_before_that_is_known(tmp_path):
    """A list that is read while a batch is applied finds it, or says that it may be missing."""
    _, replica = held(tmp_path, **WINDOW)
    store, seen = replica.view.store, []
    commit = store.commit
    store.commit = lambda offsets: (seen.append(replica.view.still_unproven), commit(offsets))
    applied(replica, beat(AWAY), (window(5_000), None))
    assert seen == [(AWAY,)]


def test_reopened_store_remembers_what_is_unproven(tmp_path):
    _, replica = held(tmp_path, **WINDOW)
    applied(replica, beat(AWAY))
    committed = replica.view.store.committed_offset(replica.topic_partition)
    assert committed is not None
    document = json.loads(json.dumps(committed.document()))
    again = Replica.opened(replica.spec, replica.task, replica.view.store)
    resume(again, CommittedOffset.from_document(document))
    assert again.view.still_unproven == (AWAY,)
