"""Both tiers on Unix sockets, beside addresses of TCP and instead of them."""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click.testing
import httpx
import pytest
import yaml

from forebay.client import AsyncClient, Client
from forebay.errors import UnknownKey
from forebay_client.query_command import query
from tests.end_to_end.test_tls import Authority
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

POD_TEMPLATE = Path(__file__).parents[2] / "deploy" / "spark-executor-pod-template.yaml"
KEY = "/v1/stores/counts/keys/k1"
ROWS = {b"k%d" % i: b"%d" % i for i in range(20)}
SOCKETS = ("worker", "router", "encrypted")
PROCESSES = 2
TRIES = 60


class Sidecar:
    """A cluster on Unix sockets: a worker, a router of several processes, and one that speaks HTTPS over TCP."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.authority = Authority(cluster.directory / "authority")
        self.worker = f"127.0.0.1:{free_port()}"
        cluster.start_worker(self.worker, "--listen", f"{self.worker},{self.url('worker')}")
        cluster.launch_router("--listen", self.url("router"), "--processes", str(PROCESSES))
        self.encrypted = f"127.0.0.1:{free_port()}"
        cluster.launch_router(
            "--listen", f"{self.encrypted},{self.url('encrypted')}", *self.authority.options("localhost")
        )
        for name in SOCKETS:
            wait_until(lambda name=name: self.readiness(name) == 200, f"readiness of {name}")

    def path(self, name: str) -> Path:
        return self.cluster.directory / f"{name}.sock"

    def url(self, name: str) -> str:
        return f"unix:{self.path(name)}"

    def http(self, name: str) -> httpx.Client:
        """A connection of its own."""
        return httpx.Client(
            base_url="http://localhost", transport=httpx.HTTPTransport(uds=str(self.path(name))), timeout=10
        )

    def get(self, name: str, path: str) -> httpx.Response:
        with self.http(name) as http:
            return http.get(path)

    def readiness(self, name: str) -> int | None:
        try:
            return self.get(name, "/readyz").status_code
        except httpx.TransportError:
            return None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with running_cluster(tmp_path_factory.mktemp("unix")) as cluster:
        cluster.put("counts", ROWS)
        yield Sidecar(cluster)


@pytest.mark.parametrize("name", SOCKETS)
def test_a_socket_answers_all_that_an_address_does(served, name):
    assert stat.S_IMODE(served.path(name).stat().st_mode) == 0o660
    assert served.get(name, KEY).json()["value"] == 1
    assert "_reads_total" in served.get(name, "/metrics").text
    with served.http(name) as http:
        answer = http.get(KEY, headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:forebay:problem:host-not-allowed")


def test_a_worker_answers_at_its_address_too(served):
    assert served.cluster.get(served.worker, KEY)["value"] == 1
    assert served.get("worker", "/v1/status").json()["host"] == served.worker


def test_tls_is_spoken_over_tcp_and_not_over_a_socket(served):
    trusting = ssl.create_default_context(cafile=served.authority.file)
    port = served.encrypted.rpartition(":")[2]
    assert httpx.get(f"https://localhost:{port}{KEY}", verify=trusting).json()["value"] == 1
    assert served.get("encrypted", KEY).json()["value"] == 1


@pytest.mark.parametrize("name", SOCKETS)
def test_both_clients_and_the_commands_read_through_it(served, name):
    keys = [key.decode() for key in ROWS]

    async def read() -> list[object]:
        async with AsyncClient(served.url(name)) as client:
            answers = await asyncio.gather(*(client.get("counts", key) for key in keys))
        return [answer.value for answer in answers]

    with Client(served.url(name)) as client:
        assert [answer.value for answer in client.get_many("counts", keys)] == asyncio.run(read())
        assert {entry.key for entry in client.entries("counts")} == set(keys)
        with client.changes("counts", "k2") as changes:
            assert next(changes).value == 2
        with pytest.raises(UnknownKey):
            client.get("counts", "nobody")
    done = click.testing.CliRunner().invoke(query, ["--url", served.url(name), "counts", "k2"])
    assert json.loads(done.output)["value"] == 2


def test_every_process_of_a_router_accepts(served):
    with contextlib.ExitStack() as stack:
        # An idle process accepts: held open, connections end up at all.
        clients = [stack.enter_context(served.http("router")) for _ in range(TRIES)]
        answering = {client.get("/v1/status").json()["process_id"] for client in clients}
    assert len(answering) == PROCESSES


def test_executor_probes_detect_an_answering_router(served, tmp_path):
    [sidecar] = yaml.safe_load(POD_TEMPLATE.read_text())["spec"]["initContainers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        program, *arguments = sidecar[probe]["exec"]["command"]
        assert program == "python"
        for directory, status in ((served.cluster.directory, 0), (tmp_path, 1)):
            command = [argument.replace("/run/forebay", str(directory)) for argument in arguments]
            done = subprocess.run([sys.executable, *command], capture_output=True, check=False, timeout=20)
            assert done.returncode == status, done.stderr


@pytest.mark.chaos
def test_answered_socket_is_refused_and_a_stale_one_replaced(served, tmp_path):
    url = f"unix:{tmp_path / 'router.sock'}"
    options = ("--listen", url, "--processes", str(PROCESSES))
    victim = served.cluster.router_process(served.cluster.launch_router(*options))
    with Client(url) as client:
        wait_until(lambda: reads(client), "an answer")
        command = [sys.executable, "-m", "forebay", "router", "--seeds", served.worker, *options]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert (refused.returncode, refused.stderr) == (
            1,
            f"forebay: Cannot listen on {url}: another process answers there. Stop it, or give another path with "
            "--listen.\n",
        )
        assert reads(client)
        victim.kill()
        victim.wait(10)
        # Its processes end with it, a moment later.
        wait_until(lambda: not answers(tmp_path / "router.sock"), "the end of its processes")
        assert (tmp_path / "router.sock").exists()
        successor = served.cluster.router_process(served.cluster.launch_router(*options))
        wait_until(lambda: reads(client), "an answer of the successor")
    successor.send_signal(signal.SIGTERM)
    assert successor.wait(10) == 0


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def reads(client: Client) -> bool:
    with contextlib.suppress(Exception):
        return client.get("counts", "k1", timeout_ms=200).value == 1
    return False
