"""What each of a worker's processes gets of the worker's settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from forebay.errors import SettingError
from forebay.listen_addresses import parse_listen_address
from forebay.setting_sources import load_settings
from forebay.settings import WorkerSettings
from forebay.streams_metadata import HostInfo
from forebay_worker.command import DIVIDED, shares

FLAGS = {"topology": "t.toml", "changelog": "sqlite:///log", "state_dir": "/var/state", "listen": "127.0.0.1:8081"}
FOUR = WorkerSettings(**load_settings("worker", {**FLAGS, "processes": "4"}, environment={}))


def test_each_process_has_its_own_address_and_directory():
    """The first process has the worker's own."""
    named = replace(FOUR, advertise=HostInfo("worker-1", 80))
    assert [str(share.listen[0]) for share in shares(named)] == [f"127.0.0.1:{port}" for port in range(8081, 8085)]
    assert [str(share.advertise) for share in shares(named)] == [f"worker-1:{port}" for port in range(80, 84)]
    further = [Path(f"/var/state/process-{number}") for number in (1, 2, 3)]
    assert [share.state_dir for share in shares(named)] == [Path("/var/state"), *further]


def test_limits_and_memory_are_the_whole_workers():
    for name in DIVIDED - {"apply_records_per_second", "restore_processes"}:
        assert [getattr(share, name) for share in shares(FOUR)] == [getattr(FOUR, name) / 4] * 4, name


def test_a_part_is_never_nothing_unless_the_whole_is():
    limited = replace(FOUR, apply_records_per_second=10, restore_processes=1)
    assert {(share.apply_records_per_second, share.restore_processes) for share in shares(limited)} == {(3, 1)}
    unlimited = replace(FOUR, apply_records_per_second=0, restore_processes=0)
    assert {(share.apply_records_per_second, share.restore_processes) for share in shares(unlimited)} == {(0, 0)}


def test_an_answer_has_room_in_a_processes_memory():
    for share in shares(replace(FOUR, processes=32)):
        assert share.max_answer_bytes <= share.request_memory_bytes / 2


@pytest.mark.parametrize(
    ("listen", "named"),
    [("unix:/run/w.sock", "there is no socket of them all"), ("127.0.0.1:65534", "65536 is none")],
)
def test_addresses_of_which_there_cannot_be_several_are_refused(listen, named):
    with pytest.raises(SettingError, match=named):
        shares(replace(FOUR, listen=(parse_listen_address(listen),)))
