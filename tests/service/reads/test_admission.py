"""What a replica must have before it answers a read, and what its answer states; on a real store."""

import asyncio
from typing import Any

import pytest

from forebay.clock import boot_ms
from forebay.errors import (
    AnswerTooLarge,
    BadParameter,
    LagExceedsTolerance,
    LogDiverged,
    NotActive,
    NotReady,
    PartitionerMismatch,
    PositionNotReached,
    PositionOfAnotherLog,
    Problem,
)
from forebay.lag import UNKNOWN_LAG, Tolerance
from forebay.position import Position, decode_position, encode_position, log_digest
from forebay.wire.answers import HttpAnswer
from forebay.wire.parameters import ENTRIES_PARAMETERS, KEY_PARAMETERS, ReadParameters, parse_parameters
from forebay.wire.scans import SCAN_ROUTES, Cursor, make_scan
from forebay_worker.reads.admission import Admission, Refused
from forebay_worker.reads.keys import Reads
from forebay_worker.reads.scans import Scans
from forebay_worker.tasks.replica import Replica
from tests.support.held_reads import IN_MEMORY, batch_of, held

ENTRIES = next(route for route in SCAN_ROUTES if route.items == "entries")


def read(admission: Admission, query: str = "", key: bytes = b"k") -> HttpAnswer:
    return (
        Reads(admission, 1 << 20, IN_MEMORY)
        .key("counts", parse_parameters(query.encode(), KEY_PARAMETERS))
        .answer(key)
    )


def refused(admission: Admission, query: str = "", key: bytes = b"k") -> Problem:
    with pytest.raises(Refused) as refusal:
        read(admission, query, key)
    return refusal.value.problem


def progress(replica: Replica, **changed: Any) -> None:
    replica.publish(progress=replica.view.progress._replace(**changed))


def position(offset: int) -> str:
    return encode_position(Position(log_digest("log"), {0: offset}))


def test_an_old_end_offset_proves_no_record_lag(tmp_path):
    admission, replica = held(tmp_path)
    progress(replica, end_sent_boot_ms=boot_ms() - 4_000)
    assert read(admission, "max_record_lag=0").status == 200
    progress(replica, end_sent_boot_ms=boot_ms() - 6_000)
    assert isinstance(refused(admission, "max_record_lag=1000"), LagExceedsTolerance)
    # Without a bound it is stated as it was observed.
    assert b'"record_lag":0' in read(admission).body
    assert read(admission, "max_time_lag_ms=60000").status == 200


def test_reads_of_one_moment_are_each_held_to_their_own_bounds(tmp_path, monkeypatch):
    admission, replica = held(tmp_path)
    progress(replica, end_offset=7)
    now_ns = int(boot_ms() * 1e6)
    monkeypatch.setattr("forebay_worker.reads.admission.time.clock_gettime_ns", lambda clock: now_ns)
    for query in ("", "max_record_lag=6", "max_record_lag=3", "max_record_lag=6", "max_record_lag=0"):
        if query in ("max_record_lag=3", "max_record_lag=0"):
            assert isinstance(refused(admission, query), LagExceedsTolerance)
        else:
            assert read(admission, query).status == 200


def test_no_position_is_given_of_a_store_that_was_replaced(tmp_path):
    """How far what was read was, is not known any more: a token of the new store would let reads go back."""
    admission, replica = held(tmp_path)
    admitted = admission.admit(replica, parse_parameters(b"", KEY_PARAMETERS))
    assert decode_position(admission.replica_info(admitted).source.position).offsets == {0: 1}
    replica.invalidate()
    with pytest.raises(Refused) as refusal:
        admission.replica_info(admitted)
    assert isinstance(refusal.value.problem, NotReady)


def test_a_position_is_not_reached_in_the_middle_of_a_replay(tmp_path):
    admission, replica = held(tmp_path)
    progress(replica, position=10, applying_to=10, consistent_position=4, end_offset=12)
    assert read(admission, f"min_position={position(4)}").status == 200
    assert isinstance(refused(admission, f"min_position={position(5)}"), PositionNotReached)


def test_a_position_of_another_log_is_a_conflict_though_it_proves_no_history(tmp_path):
    admission, _ = held(tmp_path)
    other = encode_position(Position(log_digest("other"), {0: 0}))
    with pytest.raises(PositionOfAnotherLog):
        read(admission, f"min_position={other}")


def test_a_token_covers_what_is_being_applied(tmp_path):
    admission, replica = held(tmp_path)
    progress(replica, applying_to=9)
    head = dict(read(admission).headers())
    assert decode_position(head[b"forebay-position"].decode()).offsets == {0: 9}


def test_token_is_taken_after_the_value_lag_before(tmp_path):
    admission, replica = held(tmp_path)
    progress(replica, end_offset=3)
    admitted = admission.admit(replica, ReadParameters())
    # Both are applied while the value is read.
    progress(replica, position=3, applying_to=3, consistent_position=3)
    source = admission.replica_info(admitted).source
    assert decode_position(source.position).offsets == {0: 3}
    assert source.lag.record_lag == 2


def test_misses_are_refused_where_the_log_has_other_partitions(tmp_path):
    admission, replica = held(tmp_path)
    replica.learn_partitions(2)
    assert isinstance(refused(admission, key=b"nobody"), PartitionerMismatch)
    assert read(admission).status == 200


def test_a_later_page_needs_the_position_of_the_one_before(tmp_path):
    admission, replica = held(tmp_path)
    scan = make_scan(ENTRIES, replica.spec, None, ReadParameters())

    def page(at: int) -> HttpAnswer:
        cursor = Cursor(scan.digest, b"\x01a", position(at)).encode()
        parameters = parse_parameters(f"cursor={cursor}".encode(), ENTRIES_PARAMETERS)
        return asyncio.run(Scans(admission, IN_MEMORY).answer(ENTRIES, "counts", None, parameters, frames=False))

    assert page(1).status == 200
    with pytest.raises(Refused) as refusal:
        page(2)
    assert isinstance(refusal.value.problem, PositionNotReached)


def test_a_role_ends_with_its_lease(tmp_path):
    admission, replica = held(tmp_path)
    replica.designated_boot_ms = boot_ms() - 1_000
    progress(replica, last_caught_up_boot_ms=boot_ms())
    assert b'"role":"active"' in read(admission, "require_active=true").body
    admission._membership.lease_until_boot_ms = boot_ms()
    assert b'"role":"standby"' in read(admission).body
    assert isinstance(refused(admission, "require_active=true"), NotActive)


def test_ceiling_applies_without_a_bound(tmp_path):
    admission, replica = held(tmp_path)
    admission._ceiling = Tolerance(max_record_lag=5)
    progress(replica, end_offset=7)
    for query in ("", "max_record_lag=100"):
        assert isinstance(refused(admission, query), LagExceedsTolerance)
    progress(replica, end_offset=6)
    assert read(admission).status == 200


def test_a_diverged_replica_is_refused_without_lag(tmp_path):
    admission, replica = held(tmp_path)
    replica.designated_boot_ms = boot_ms() - 1_000
    progress(replica, last_caught_up_boot_ms=boot_ms())
    assert admission.lag(replica)[0] == "active"
    replica.invalidate()
    # The value is still there.
    for query in ("", "max_record_lag=1000", "require_active=true"):
        assert isinstance(refused(admission, query), LogDiverged)
    assert admission.lag(replica) == ("restoring", UNKNOWN_LAG)


def test_a_key_that_a_batch_repeats_is_read_once(tmp_path, monkeypatch):
    """Three kilobytes of keys must not make a worker read half a gigabyte."""
    admission, replica = held(tmp_path)
    store, read = replica.view.store, []
    get_many = store.get_many

    def counted(keys: list[bytes]) -> list[bytes | None]:
        read.extend(keys)
        return get_many(keys)

    monkeypatch.setattr(store, "get_many", counted)
    batch = batch_of(
        Reads(admission, 1 << 20, IN_MEMORY), ["k", "absent", "k", 7, "absent", "k"], ReadParameters()
    )
    assert [status for status, _ in batch.results] == [200, 404, 200, 400, 404, 200]
    assert len(read) == len(set(read)) == 2
    value = batch.results[0][1]
    with pytest.raises(AnswerTooLarge):
        batch_of(Reads(admission, 3 * len(value), IN_MEMORY), ["k"] * 4, ReadParameters())
    assert len(read) == 3


def test_a_time_is_refused_where_no_versions_are_kept(tmp_path):
    """To answer with the present value would be wrong."""
    admission, _ = held(tmp_path)
    with pytest.raises(BadParameter):
        read(admission, "as_of=5")
    batch = batch_of(Reads(admission, 1 << 20, IN_MEMORY), ["k"], parse_parameters(b"as_of=5", KEY_PARAMETERS))
    assert [status for status, _ in batch.results] == [400]
