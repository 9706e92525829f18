"""The end of a process, for those whose requests it has not answered yet."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster import running_cluster, wait_until

WAITS = (
    b"GET /v1/stores/counts/keys/k?max_age_ms=0&wait_ms=20000&timeout_ms=25000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
)
HALF = b'POST /v1/stores/counts/batch-get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"keys": ['


@pytest.mark.parametrize("tier", ["worker", "router"])
@pytest.mark.parametrize("request_", [WAITS, HALF], ids=["waits", "half"])
def test_shutdown_answers_waiting_reads(tmp_path, tier, request_):
    """A request that has not arrived whole is not waited for."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"1"})
        options = ("--shutdown-timeout-ms", "8000")
        worker = cluster.start_worker(None, *options)
        router = cluster.start_router(*options)
        cluster.wait_settled(router, replicas=1)
        address = {"worker": worker, "router": router}[tier]
        process = cluster.workers[worker] if tier == "worker" else cluster.router_process(router)
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(request_)
            wait_until(lambda: under_way(address, process.pid), "its being under way")
            process.send_signal(signal.SIGTERM)
            answer = b"".join(iter(lambda: client.recv(65_536), b""))
        assert process.wait(20) == 0
        if request_ is WAITS:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"application/problem+json" in head
            assert json.loads(body)["type"] == "urn:forebay:problem:not-ready"
        else:
            assert answer == b""
        assert "Traceback" not in cluster.logs()


def under_way(address: str, pid: int) -> bool:
    """Whether the process has read all that was sent to it: nothing waits in a socket of its port."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    accepted = [row for row in rows if row[1].endswith(port) and row[3] == "01"]
    return bool(accepted) and all(row[4].endswith(":00000000") for row in accepted)


@pytest.mark.chaos
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a namespace of processes")
def test_first_process_of_a_container_stops_at_once(tmp_path):
    """The kernel drops SIGTERM to a first process that has no handler for it, as every process has at first."""
    command = [sys.executable, "-m", "forebay", "router", "--seeds", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    with (tmp_path / "log").open("w") as log:
        parent = subprocess.Popen(["unshare", "--pid", "--fork", *command], stderr=log, stdout=log)
        try:
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")

            def handles_sigterm() -> bool:
                found = children.read_text().split()
                status = Path(f"/proc/{found[0]}/status").read_text() if found else ""
                caught = re.search(r"^SigCgt:\s*(\w+)", status, re.M)
                return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

            wait_until(handles_sigterm, "a handler")
            begun = time.monotonic()
            os.kill(int(children.read_text().split()[0]), signal.SIGTERM)
            parent.wait(20)
            assert time.monotonic() - begun < 10
            # Long before the web stack is imported.
            assert "listens on" not in (tmp_path / "log").read_text()
        finally:
            parent.kill()
            parent.wait()
