"""A store that is closed under a read, as in a rebuild: the client is sent elsewhere."""

from pathlib import Path

import pytest

from forebay.errors import HistoryExpired, NotReady, UnknownKey
from forebay.wire.parameters import ENTRIES_PARAMETERS, ReadParameters, parse_parameters
from forebay.wire.scans import SCAN_ROUTES
from forebay_worker.reads.admission import Admission
from forebay_worker.reads.keys import Reads
from forebay_worker.reads.scans import Scans
from forebay_worker.reads.values import miss
from tests.support.held_reads import IN_MEMORY, batch_of, held


@pytest.fixture
def closed(tmp_path: Path) -> Admission:
    admission, replica = held(tmp_path)
    assert Reads(admission, 1 << 20, IN_MEMORY).key("counts", ReadParameters()).answer(b"k").status == 200
    replica.view.store.close()
    return admission


def test_miss_in_a_store_that_closed_is_not_ready(tmp_path):
    """A read as of a time was admitted before the store was closed."""
    admission, replica = held(tmp_path, kind="versioned", history_retention_ms=1_000)
    replica.publish(stream_time_ms=10_000)
    admitted = admission.admit(replica, ReadParameters())
    assert isinstance(miss(admitted, admitted.replica.spec, b"k", 4_000), HistoryExpired)
    assert isinstance(miss(admitted, admitted.replica.spec, b"other", 4_000), UnknownKey)
    replica.view.store.close()
    assert isinstance(miss(admitted, admitted.replica.spec, b"k", 4_000), NotReady)


def test_one_key(closed):
    with pytest.raises(NotReady, match="being reopened"):
        Reads(closed, 1 << 20, IN_MEMORY).key("counts", ReadParameters()).answer(b"k")


def test_several_keys(closed):
    results, waiting, lags = batch_of(Reads(closed, 1 << 20, IN_MEMORY), ["k", "absent"], ReadParameters())
    assert [status for status, _ in results] == [503, 503]
    assert (waiting, lags) == ([0, 1], set())


async def test_a_range(closed):
    entries = next(route for route in SCAN_ROUTES if route.items == "entries")
    with pytest.raises(NotReady, match="being reopened"):
        await Scans(closed, IN_MEMORY).answer(
            entries, "counts", None, parse_parameters(b"", ENTRIES_PARAMETERS), frames=False
        )
