"""A store that nobody has written yet may be about to get any key: none is missing for sure."""

from typing import Any

import pytest

from forebay.clock import boot_ms
from forebay.errors import NotReady, Problem, UnknownKey
from forebay.lag import EndOffset
from forebay.wire.parameters import ReadParameters
from forebay_changelog import Batch, Heartbeat
from forebay_changelog.record_headers import heartbeat_key
from forebay_worker.reads.values import miss
from forebay_worker.tasks.apply import apply_batch
from tests.support.held_reads import held

BEAT = (0, heartbeat_key("w"), Heartbeat(None, "q", 0).value(), 0, True)


@pytest.mark.parametrize(
    ("store", "written", "expected"),
    [
        ({}, [], NotReady),
        ({}, [BEAT], UnknownKey),
        ({}, [(0, b"k", b"1", 0, False)], UnknownKey),
        ({"external": True, "topic": "clicks"}, [], UnknownKey),
    ],
    ids=["unwritten", "heartbeat", "record", "external"],
)
def test_key_is_missing_only_from_a_log_that_was_written(
    tmp_path, store: Any, written: list[Any], expected: type[Problem]
):
    admission, replica = held(tmp_path, **store)
    view = replica.view
    tp, end = replica.topic_partition, len(written)
    view.store.commit({tp: view.store.committed_offset(tp)._replace(position=0, consistent_position=0)})
    replica.publish(progress=view.progress._replace(position=0, applying_to=0, consistent_position=0))
    apply_batch(replica, Batch(tp, written, end, False, EndOffset(end, boot_ms()), 0, 0, "log"))
    found = miss(admission.admit(replica, ReadParameters()), replica.spec, b"absent")
    assert type(found) is expected
    assert ("Nobody has written to this partition of 'counts' yet" in found.detail) is (expected is NotReady)
