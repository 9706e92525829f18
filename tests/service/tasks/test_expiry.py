"""What is past its retention goes by stream time: whoever saw it come, or was built later, has the same."""

import pytest

from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.tasks import TaskId
from forebay.topology import StoreSpec
from forebay_worker.state.memory import MemoryStore
from forebay_worker.tasks.expiry import Expiry, oldest_kept_ms
from forebay_worker.tasks.replica import Replica

RETENTION_MS = 1_000
WINDOWS = StoreSpec(
    "w", "window", "string", "json", "murmur2", "t", 1, window_size_ms=100, retention_ms=RETENTION_MS
)
SESSIONS = StoreSpec("s", "session", "string", "json", "murmur2", "t", 1, gap_ms=50, retention_ms=RETENTION_MS)


def times(spec: StoreSpec, end_ms: int) -> tuple[int, ...]:
    """Those in the key of an entry that ends then; sessions last for longer than they are kept."""
    return (end_ms, end_ms - 5_000) if spec.kind == "session" else (end_ms - 100,)


@pytest.mark.parametrize("spec", [WINDOWS, SESSIONS], ids=["windows", "sessions"])
def test_what_ends_too_long_before_stream_time_goes_and_nothing_else(spec):
    replica, expiry = Replica(spec, TaskId(0, 0), MemoryStore("s")), Expiry()
    for end_ms in range(0, 20_001, 100):
        for key in (b"a", b"b"):
            replica.store.put(spec.stored_keys.stored(key, *times(spec, end_ms)), b"1")
        replica.store.commit({})
        replica.stream_time_ms = end_ms
        expiry.sweep(replica)
    while expiry.sweep(replica):
        pass
    found = [spec.stored_keys.parse(key) for key, _ in replica.store.scan(USER_TAG, END_OF_USER_KEYS)]
    kept = [times(spec, end_ms) for end_ms in range(19_100, 20_001, 100)]
    assert [(key.plain, key.times_ms) for key in found] == [(key, at) for key in (b"a", b"b") for at in kept]
    assert oldest_kept_ms(spec, 20_000) == kept[0][0] - 99


def test_what_has_no_retention_stays():
    assert oldest_kept_ms(StoreSpec("k", "key-value", "string", "json", "murmur2", "t", 1), 5_000) is None
