import pytest

from forebay.changelog import Heartbeat, heartbeat_key


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
