"""``forebay dev`` on real processes."""

import contextlib
import json
import re
import signal
import socket
import tomllib
from pathlib import Path

import httpx
import pytest

from forebay.errors import SettingError
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay.topology_file import parse_topology
from forebay_changelog.log_reader import batches_to_end
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.dev.cluster import STORE, TOPOLOGY, SampleStream
from forebay_worker.dev.command import dev
from tests.support.cluster import free_port, wait_until
from tests.support.commands import forebay
from tests.support.dev import running_dev

KEYS = "/v1/stores/orders_by_customer/keys"


def refused(address: str) -> bool:
    with socket.socket() as probe:
        host, port = address.split(":")
        return probe.connect_ex((host, int(port))) != 0


def test_it_serves_until_it_is_interrupted_and_leaves_nothing(tmp_path):
    with running_dev(tmp_path) as (process, address, workers):
        read = f"http://{address}{KEYS}/ann"
        # The sample's first batch may be on its way.
        wait_until(lambda: httpx.get(read).status_code == 200, "a value")
        first = httpx.get(read).json()["value"]["orders"]
        wait_until(lambda: httpx.get(read).json()["value"]["orders"] > first, "an order")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert refused(address)
        assert not Path(f"/proc/{next(iter(workers.values()))}").exists()
        assert not list(tmp_path.iterdir())


def test_no_process_outlives_a_command_that_is_killed(tmp_path):
    with running_dev(tmp_path, "--directory", str(tmp_path)) as (process, address, workers):
        process.kill()
        [worker] = workers.values()
        wait_until(lambda: refused(address) and not Path(f"/proc/{worker}").exists(), "the end of all processes")
        assert (tmp_path / "router.log").exists()


def test_second_start_goes_on_from_what_the_first_left(tmp_path):
    """A second start in the same directory does not look like lost state."""
    changelog = SqliteChangelog(tmp_path)
    spec = parse_topology(tomllib.loads(TOPOLOGY)).stores[STORE]
    changelog.ensure(spec)
    first, second = SampleStream(changelog, spec), SampleStream(changelog, spec)
    first.begin()
    for _ in range(30):
        first.order()
    second.begin()
    second.order()
    assert orders_of_ann(changelog, spec) == [*range(1, 32), 31, 32]


def orders_of_ann(changelog: SqliteChangelog, spec: StoreSpec) -> list[int]:
    found = []
    with contextlib.closing(changelog.consumer()) as consumer:
        for partition in range(spec.partitions):
            for batch in batches_to_end(consumer, TopicPartition(spec.topic, partition)):
                found += [
                    json.loads(value)["orders"] for _, key, value, *_ in batch.records if key == b"ann" and value
                ]
    return found


def test_a_taken_address_is_named_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = forebay("dev", "--listen", address)
    assert done.returncode == 1
    assert done.stderr.startswith(f"forebay: Cannot listen on {address}: Address already in use.")


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "nonsense"])
def test_an_unusable_address_is_named(listen):
    with pytest.raises(SettingError, match=re.escape(listen)):
        dev.main(["--listen", listen], standalone_mode=False)


def test_an_unusable_directory_is_named():
    with pytest.raises(SettingError, match="/dev/null/x cannot be created"):
        dev.main(["--listen", f"127.0.0.1:{free_port()}", "--directory", "/dev/null/x"], standalone_mode=False)
