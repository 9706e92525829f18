"""Requests for a host that is not the process's are refused, on the fast path and off it."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.end_to_end.test_fast_path import exchange, post, request, steady
from tests.support.cluster import Cluster, free_port, running_cluster

KEY = "/v1/stores/counts/keys/a"
BATCH = post("/v1/stores/counts/batch-get", '{"keys":["a"]}')
TO_THE_PARSER = "TE: trailers"
Served = dict[str, str]
"""Addresses by what is there."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A worker and routers: on loopback, with a name, and open to others; and a worker that advertises a name."""
    with running_cluster(tmp_path_factory.mktemp("hosts")) as cluster:
        cluster.put("counts", {b"a": b'{"n":1}'})
        (worker,) = cluster.start_workers(1)
        router = cluster.launch_router()
        named = cluster.launch_router("--allowed-hosts", "reads.example.org")
        everywhere = f"127.0.0.1:{free_port()}"
        cluster.launch_router("--listen", everywhere.replace("127.0.0.1", "0.0.0.0"), "--allow-anonymous")
        alone = Cluster(tmp_path_factory.mktemp("alone"))
        alone.put("counts", {b"a": b"1"})
        called = alone.start_worker(
            f"127.0.0.1:{(port := free_port())}", "--advertise", f"worker.test:{port}", ready=False
        )
        try:
            for address in (router, named):
                cluster.wait_ready(address)
            alone.wait_ready(called)
            cluster.wait_settled(router, replicas=1)
            cluster.wait_settled(everywhere, replicas=1)
            yield {
                "worker": worker,
                "router": router,
                "named": named,
                "everywhere": everywhere,
                "called": called,
            }
        finally:
            alone.stop()


def of(host: str, data: bytes) -> bytes:
    """A request with another host."""
    return data.replace(b"Host: localhost", f"Host: {host}".encode())


def status_of(answer: bytes) -> int:
    return int(answer[9:12])


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_a_name_that_was_rebound_reads_nothing(served, tier):
    address = served[tier]
    for sent in (request(KEY), request(KEY, "Origin: http://evil.example"), BATCH):
        (fine,) = exchange(address, sent, 1)
        assert status_of(fine) == 200
        # However often that form was read before, and after it.
        own, others = of("localhost", sent), of("evil.example", sent)
        found = exchange(address, own + others + own + others, 4)
        assert [status_of(answer) for answer in found] == [200, 400, 200, 400]
        # By itself, since batches among others are left to the framework.
        (alone,) = exchange(address, others, 1)
        assert steady(alone) == steady(found[1])
        assert b"urn:forebay:problem:host-not-allowed" in found[1]
        assert b"evil.example" in found[1]
    (cold,) = exchange(address, of("evil.example", request(KEY, TO_THE_PARSER)), 1)
    (hot,) = exchange(address, of("evil.example", request(KEY)), 1)
    assert hot == cold


@pytest.mark.parametrize("tier", ["worker", "router"])
@pytest.mark.parametrize("path", ["/v1/stores", "/metrics", "/openapi.json", "/docs", "/v1/status", "/nothing"])
def test_no_path_is_read_by_another_name(served, tier, path):
    (answer,) = exchange(served[tier], of("evil.example", request(path)), 1)
    assert status_of(answer) == 400


@pytest.mark.parametrize("tier", ["worker", "router", "named", "everywhere"])
def test_probes_are_answered_whatever_they_call_the_process(served, tier):
    for path in ("/livez", "/readyz"):
        found = exchange(served[tier], of("10.1.2.3:8080", request(path)) + of("pod.svc", request(path)), 2)
        assert [status_of(answer) for answer in found] == [200, 200]


@pytest.mark.parametrize(
    ("tier", "host", "status"),
    [
        ("called", "worker.test:1", 200),
        ("called", "other.test:1", 400),
        ("worker", "worker.test:1", 400),
        ("worker", "127.0.0.1", 200),
        ("router", "[::1]:8080", 200),
        ("named", "reads.example.org:443", 200),
        ("named", "localhost", 200),
        ("named", "evil.example", 400),
        ("everywhere", "reads.example.org", 200),
    ],
)
def test_which_hosts_a_process_has(served, tier, host, status):
    found = exchange(served[tier], of(host, request(KEY)) + of(host, request(KEY, TO_THE_PARSER)), 2)
    assert [status_of(answer) for answer in found] == [status, status]


def test_a_request_without_a_host_is_no_browsers(served):
    (answer,) = exchange(served["router"], f"GET {KEY} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode(), 1)
    assert status_of(answer) == 200


def test_refused_hosts_are_counted(served):
    def counted() -> int:
        metrics = httpx.get(f"http://{served['router']}/metrics").text
        found = re.search(r'^forebay_router_auth_failures_total{status="400"} (\d+)', metrics, re.M)
        return int(found[1]) if found else 0

    before = counted()
    (answer,) = exchange(served["router"], of("evil.example", request(KEY)), 1)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 400
    assert counted() == before + 1
