"""Routers behind real load balancers, by the configurations that are there."""

import contextlib
import http.client
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import click.testing
import httpx
import pytest

from forebay_client.status_command import status as status_command
from tests.deploy.test_chart import KUBERNETES
from tests.support.balancers import BALANCERS, DEPLOY, running_balancer
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

KEY = "/v1/stores/counts/keys/a%2Fb"
MAX_STREAMS = 8
CLIENTS = ("127.0.0.2", "127.0.0.3")
READS_PER_S = 500
DRAIN_MS = 1000
CHANGES = {"caddy": {"health_interval 1s": "health_interval 100ms"}}
"""Of a router that drains for a fifth of the usual time, Caddy asks more often as well: it does not repeat a read
that got a 503."""
each = pytest.mark.parametrize("name", [balancer.name for balancer in BALANCERS])


class Balanced:
    """A worker, two routers, and the balancers in front of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.worker = f"127.0.0.1:{free_port()}"
        self.routers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.processes = [self.launch(router) for router in self.routers]
        self.fronts: dict[str, str] = {}

    def launch(self, router: str) -> subprocess.Popen[bytes]:
        limits = ("--max-event-streams", str(MAX_STREAMS), "--drain-ms", str(DRAIN_MS))
        options = ("--seeds", self.worker, "--listen", router, "--trusted-proxies", "127.0.0.1/32")
        started = self.cluster.launch_router(*options, *limits)
        return self.cluster.router_process(started)

    def front(self, name: str) -> str:
        """A balancer's URL."""
        if name not in self.fronts:
            pytest.skip(f"{name} is not installed")
        return self.fronts[name]


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    with running_cluster(tmp_path_factory.mktemp("balancers")) as cluster, contextlib.ExitStack() as stack:
        cluster.put("counts", {b"a/b": b"1"})
        balanced = Balanced(cluster)
        for balancer in BALANCERS:
            if balancer.command is not None:
                directory = cluster.directory / balancer.name
                directory.mkdir()
                running = running_balancer(balancer, directory, balanced.routers, CHANGES.get(balancer.name))
                balanced.fronts[balancer.name] = stack.enter_context(running)
        for router in balanced.routers:
            cluster.wait_alive(router)
        for front in balanced.fronts.values():
            wait_until(lambda front=front: status(front) is not None, front)
        yield balanced


@pytest.fixture(scope="module")
def serving(balanced: Balanced) -> Balanced:
    """The same with its worker."""
    balanced.cluster.start_worker(balanced.worker)
    for front in balanced.fronts.values():
        before = [reads(router) for router in balanced.routers]
        wait_until(
            lambda front=front, before=before: (
                status(front) == 200
                and all(reads(router) > count + 1 for router, count in zip(balanced.routers, before, strict=True))
            ),
            f"reads by both routers through {front}",
        )
    return balanced


def status(front: str) -> int | None:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(front + KEY).status_code
    return None


@pytest.mark.parametrize("file", [*(balancer.file for balancer in BALANCERS), "envoy.yaml"])
def test_both_routers_are_named(file):
    assert set(re.findall(r"\brouter-\d\b", (DEPLOY / file).read_text())) == {"router-1", "router-2"}


@each
def test_where_no_router_is_ready_they_answer_all_the_same(balanced, name):
    front = balanced.front(name)
    # HAProxy itself answers until its first checks are over.
    wait_until(lambda: "json" in httpx.get(front + KEY).headers.get("content-type", ""), "a router's answer")
    for _ in range(6):
        # More than it takes for nginx to take both for down.
        answer = httpx.get(front + KEY)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:forebay:problem:not-ready")
        assert "retry-after" in answer.headers
    with httpx.stream("GET", f"{front}{KEY}/changes") as changes:
        # An EventSource is closed for good by any other status.
        assert changes.status_code == 200
        assert "event: problem" in changes.iter_lines()


@each
def test_a_key_with_a_slash_a_batch_and_a_stream_pass(serving, name):
    front = serving.front(name)
    serving.cluster.put("counts", {b"a/b": b"1"})
    wait_until(lambda: httpx.get(front + KEY).json()["value"] == 1, "the first value")
    batch = httpx.post(f"{front}/v1/stores/counts/batch-get", json={"keys": ["a/b"]})
    assert batch.json()["results"][0]["value"] == 1
    with httpx.stream("GET", f"{front}{KEY}/changes") as changes:
        lines = changes.iter_lines()
        assert "event: value" in lines
        serving.cluster.put("counts", {b"a/b": b"2"})
        assert "event: value" in lines


def test_what_a_query_holds_is_not_in_the_log_of_nginx(serving):
    front = serving.front("nginx")
    log = serving.cluster.directory / "nginx" / "access.log"
    with httpx.stream("GET", f"{front}{KEY}/changes?lag_interval_ms=100&ticket=secret") as changes:
        assert changes.status_code == 200
    wait_until(lambda: f'"GET {KEY}/changes" 200' in log.read_text(), "the request in the log")
    assert "secret" not in log.read_text()


@each
def test_limits_count_the_client_behind_the_balancer(serving, name):
    """Headers that the client writes itself change nothing."""
    front = serving.front(name)
    wait_until(lambda: not any(map(streams, serving.routers)), "the end of other streams")
    with contextlib.ExitStack() as stack:
        greedy, modest = (
            stack.enter_context(httpx.Client(transport=httpx.HTTPTransport(local_address=client)))
            for client in CLIENTS
        )

        def follow(client: httpx.Client, **headers: str) -> int:
            stream = client.stream("GET", f"{front}{KEY}/changes", headers=headers)
            return stack.enter_context(stream).status_code

        taken: list[int] = []

        def has_all() -> bool:
            taken.append(follow(greedy))
            return taken.count(200) == 2 * (MAX_STREAMS - 1)

        # The balancer spreads them over both routers, as soon as it has found both ready.
        wait_until(has_all, "as many streams as one client may have")
        assert [follow(greedy) for _ in range(4)] == [429] * 4
        assert follow(greedy, **{"X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}) == 429
        assert follow(modest) == 200


def test_helm_test_command_requires_an_active_everywhere(serving):
    """`helm test` succeeds only where each partition has an active."""
    [container] = KUBERNETES["Pod", "forebay-test"]["spec"]["containers"]
    command, *arguments = container["args"]
    assert command == status_command.name

    def run(address: str) -> int:
        given = [f"http://{address}" if "://" in argument else argument for argument in arguments]
        return click.testing.CliRunner().invoke(status_command, given).exit_code

    assert run(serving.routers[0]) == 0
    assert run(f"127.0.0.1:{free_port()}") == 1


@pytest.mark.chaos
def test_no_read_fails_while_routers_are_restarted_in_turn(serving):
    if not serving.fronts:
        pytest.skip("no load balancer is installed")
    stopped = threading.Event()
    with ThreadPoolExecutor() as pool:
        readers = {name: pool.submit(read_steadily, front, stopped) for name, front in serving.fronts.items()}
        try:
            for number, router in enumerate(serving.routers):
                serving.processes[number].send_signal(signal.SIGTERM)
                assert serving.processes[number].wait(15) == 0
                serving.processes[number] = serving.launch(router)
                wait_until(lambda router=router: ready(router), "readiness")
        finally:
            stopped.set()
    answers = {name: reader.result() for name, reader in readers.items()}
    assert {name: set(statuses) for name, statuses in answers.items()} == {name: {200} for name in answers}
    assert all(statuses[200] > READS_PER_S / 5 for statuses in answers.values())


def read_steadily(front: str, stopped: threading.Event) -> Counter[int | str]:
    """The statuses of reads at a steady rate, and the errors."""
    statuses: Counter[int | str] = Counter()
    connection = http.client.HTTPConnection(urlsplit(front).netloc, timeout=20)
    due_s = time.monotonic()
    with contextlib.closing(connection):
        while not stopped.wait(max(0.0, due_s - time.monotonic())):
            due_s += 1 / READS_PER_S
            try:
                connection.request("GET", KEY)
                answer = connection.getresponse()
                answer.read()
                statuses[answer.status] += 1
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                statuses[repr(error)] += 1
    return statuses


def reads(router: str) -> float:
    """Those that it has answered."""
    return metric(router, r'forebay_router_reads_total{.*status="200".*')


def streams(router: str) -> float:
    """Those that are open."""
    return metric(router, "forebay_router_event_streams")


def metric(router: str, pattern: str) -> float:
    text = httpx.get(f"http://{router}/metrics").text
    return sum(map(float, re.findall(rf"^{pattern} (\S+)$", text, re.M)))


def ready(router: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://{router}/readyz").status_code == 200
    return False
