"""The worker group as operators see it: workers that do not agree, and a table that follows changes."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from tests.support.cluster import Cluster, free_port, heed_interrupts, wait_until

pytestmark = pytest.mark.chaos

SHOW_CURSOR = b"\x1b[?25h"
STANDBY = re.compile(r"\bstandby\b")
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def cluster(either_cluster: Cluster) -> Cluster:
    return either_cluster


def state(address: str) -> str:
    return str(httpx.get(f"http://{address}/v1/status").json()["state"])


def read(address: str, key: str) -> tuple[int, str, object]:
    answer = httpx.get(f"http://{address}/v1/stores/counts/keys/{key}")
    return answer.status_code, answer.headers.get("forebay-role", ""), answer.json().get("value")


def test_differing_topologies_are_reported(cluster, tmp_path):
    """The workers serve what they hold and name the remedy."""
    other = tmp_path / "other.toml"
    other.write_text(cluster.topology_text.replace('[[subtopology.store]]\nname = "numbers"\nkey = "int64"\n', ""))
    cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(20)})
    first = cluster.start_worker()
    second = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router)

    cluster.kill(second, signal.SIGTERM)
    cluster.start_worker(second, "--topology", str(other))

    wait_until(lambda: state(second) == "other-topology", "the difference being noticed")
    wait_until(lambda: active_everywhere(cluster, first), "the first worker being active for everything")
    assert state(first) == "member"
    for i in range(20):
        assert read(first, f"k{i}") == (200, "active", i)
        assert read(second, f"k{i}") == (200, "standby", i)
    cluster.put("counts", {b"k1": b'"newer"'})
    wait_until(lambda: read(first, "k1") == (200, "active", "newer"), "the first worker going on")
    wait_until(lambda: read(second, "k1") == (200, "standby", "newer"), "the second worker going on")
    assert "leader has topology" in (log := (tmp_path / "state-1.log").read_text())
    assert "it keeps serving what it holds. This is normal while a new topology is rolled out" in log
    assert "leader has topology" not in (tmp_path / "state-0.log").read_text()

    # It states the remedy, and that helps.
    cluster.kill(second, signal.SIGTERM)
    cluster.start_worker(second)
    cluster.wait_settled(router)
    assert (state(first), state(second)) == ("member", "member")


def active_everywhere(cluster: Cluster, address: str) -> bool:
    tasks = httpx.get(f"http://{address}/v1/status").json()["tasks"]
    held = {(row["store"], row["partition"]) for row in tasks if row["role"] == "active"}
    return held == {(spec.name, p) for spec in cluster.topology.stores.values() for p in range(spec.partitions)}


@dataclass
class Terminal:
    """A command on a terminal of its own, and what it showed there."""

    process: subprocess.Popen[bytes]
    shown: bytearray = field(default_factory=bytearray)

    def clear(self) -> None:
        self.shown.clear()

    @property
    def tables(self) -> list[str]:
        """The tables that were shown in full, without the findings below them, which name absent workers too."""
        return [table.split("└")[0] for table in self.text.split("tasks: role")[1:-1]]

    @property
    def text(self) -> str:
        return _CONTROL.sub(b"", bytes(self.shown)).decode(errors="replace")


@contextlib.contextmanager
def on_terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=heed_interrupts,
    )
    os.close(theirs)
    terminal = Terminal(process)

    def follow() -> None:
        # Reading ends with an error once the process has closed its side.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                terminal.shown.extend(piece)

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield terminal
    finally:
        process.kill()
        process.wait()
        follower.join()
        os.close(ours)


def test_status_watch_shows_changes_and_ends_cleanly(cluster):
    cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(20)})
    first = cluster.start_worker()
    router = cluster.start_router()
    with on_terminal("status", "--watch", "--interval-ms", "50", "--url", f"http://{router}") as terminal:
        wait_until(lambda: first in terminal.text and "active" in terminal.text, "the first worker's column")
        assert not STANDBY.search(terminal.text)
        second = cluster.start_worker(ready=False)
        wait_until(lambda: second in terminal.text and STANDBY.search(terminal.text), "the second worker's column")
        cluster.kill(second)
        terminal.clear()
        wait_until(lambda: any(second not in table for table in terminal.tables), "its column going away", 60)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(10) == 0, terminal.text
        wait_until(lambda: SHOW_CURSOR in terminal.shown, "the cursor being shown again")
    assert "Traceback" not in terminal.text
    assert "Aborted" not in terminal.text


def test_status_watch_outlives_the_worker_that_it_asks(cluster):
    address = cluster.start_worker()
    with on_terminal("status", "--watch", "--interval-ms", "50", "--url", f"http://{address}") as terminal:
        wait_until(lambda: "active" in terminal.text, "the table")
        cluster.kill(address, signal.SIGKILL)
        wait_until(lambda: "Nothing answers at" in terminal.text, "word of the worker being away")
        assert terminal.process.poll() is None, terminal.text
        terminal.clear()
        cluster.start_worker(address, ready=False)
        wait_until(lambda: "active" in terminal.text, "the table after the restart")


@pytest.mark.parametrize("named", [True, False], ids=["named", "by host"])
def test_standbys_are_on_another_rack_than_their_active(cluster, named):
    for rack, host in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
        if named:
            cluster.start_worker(None, "--rack", rack, ready=False)
        else:
            cluster.start_worker(f"127.0.0.{host}:{free_port()}", ready=False)
    racks = dict(zip(cluster.workers, ("a", "a", "b", "b"), strict=True))
    for address in cluster.workers:
        cluster.wait_ready(address)
    router = cluster.start_router()
    cluster.wait_settled(router)

    def apart() -> bool:
        """Those that joined first may have settled among themselves, on one rack."""
        held = cluster.roles(router, "counts").values()
        return all(sorted(racks[host] for host in hosts) == ["a", "b"] for hosts in held)

    wait_until(apart, "replicas on both racks", 60)


def test_replicas_of_a_non_returning_worker_move_at_once(cluster):
    """A worker with `--returns false` is not waited for."""
    beside = cluster.start_worker(None, "--returns", "false", ready=False)
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)

    def held_beside() -> bool:
        return any(beside in hosts for hosts in cluster.roles(router, "counts").values())

    # On a busy machine it may join after the others' first assignment.
    wait_until(held_beside, "replicas at the worker")
    cluster.kill(beside, signal.SIGTERM)
    wait_until(lambda: not held_beside(), "word of the worker being away")
    # Other workers' replicas are built 60 s later.
    cluster.wait_settled(router)


def test_new_worker_is_ready_once_its_tasks_are_restored(either_cluster):
    cluster = either_cluster
    cluster.put("counts", {b"k%d" % i: b"1" for i in range(100)})
    cluster.start_worker()
    new = cluster.start_worker()
    held = httpx.get(f"http://{new}/v1/status").json()["tasks"]
    assert held, "ready with nothing"
    assert all(row["restored"] for row in held)
