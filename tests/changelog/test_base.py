import pytest

from forebay.lag import EndOffset
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Heartbeat, heartbeat_key

END = EndOffset(2_000, 0.0)


@pytest.mark.parametrize("as_of_ms", [None, 0, 1_356_998_400_000])
def test_a_heartbeat_survives_the_log(as_of_ms: int | None) -> None:
    heartbeat = Heartbeat(as_of_ms, "query-é", 7)
    assert Heartbeat.parse(heartbeat.value()) == heartbeat


def test_each_writer_has_a_heartbeat_key_of_its_own() -> None:
    assert heartbeat_key("delays") == heartbeat_key("delays")
    assert heartbeat_key("delays") != heartbeat_key("delays2")
    assert heartbeat_key("delays").startswith(b"\x00")


def test_a_heartbeat_of_a_writer_that_fills_the_log_round_trips():
    heartbeat = Heartbeat(None, "q", 7, filling=True, lineage="abc")
    assert Heartbeat.parse(heartbeat.value()) == heartbeat


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 300])
def test_the_slices_of_a_batch_are_the_batch(count):
    records = [(10 + 2 * number, b"k", b"v", 0, False) for number in range(count)]
    batch = Batch(TopicPartition("t", 0), records, 2_000, True, END, 0, 7, "log", end_reached=True)
    parts = list(batch.slices(128))
    assert [record for part in parts for record in part.records] == records
    assert max(len(part.records) for part in parts) <= 128
    assert [part.position for part in parts[:-1]] == [part.records[-1][0] + 1 for part in parts[:-1]]
    assert parts[-1]._replace(records=records) == batch
    assert not any(part.end_reached for part in parts[:-1])
