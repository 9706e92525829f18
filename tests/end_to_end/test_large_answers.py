"""Answers of many megabytes: whole in every form, and with the answers of others in between."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster

KEYS = [f"k{number}" for number in range(12)]
VALUES = {key: f"{key}\u00e9" * (1 << 17) for key in KEYS}
PATH = "/v1/stores/counts/batch-get?timeout_ms=20000"
KEY = b"GET /v1/stores/counts/keys/k3 HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, str]]:
    with running_cluster(tmp_path_factory.mktemp("large")) as cluster:
        cluster.put("counts", {key.encode(): json.dumps(VALUES[key]).encode() for key in KEYS})
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        yield cluster, worker, cluster.start_router()


@pytest.fixture(params=["worker", "router"])
def address(cluster: tuple[Cluster, str, str], request: pytest.FixtureRequest) -> str:
    _, worker, router = cluster
    return worker if request.param == "worker" else router


def post(version: str = "1.1") -> bytes:
    body = json.dumps({"keys": KEYS}).encode()
    head = f"POST {PATH} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def body_of(received: Any) -> bytes:
    head = b"".join(iter(received.readline, b"\r\n"))
    _, _, length = head.partition(b"content-length: ")
    body: bytes = received.read(int(length.split(b"\r\n")[0]))
    return body


def values(batch: bytes) -> dict[str, str]:
    return {result["key"]: result["value"] for result in json.loads(batch)["results"]}


def test_a_batch_of_large_values_is_whole(address):
    answer = httpx.post(f"http://{address}{PATH}", json={"keys": [*KEYS, "none"]}, timeout=20)
    *found, missing = answer.json()["results"]
    assert {result["key"]: result["value"] for result in found} == VALUES
    assert (missing["key"], missing["problem"]["status"]) == ("none", 404)


def test_a_list_of_large_values_is_whole(address):
    found: dict[str, str] = {}
    parameters = {"timeout_ms": "20000"}
    while True:
        page = httpx.get(f"http://{address}/v1/stores/counts/entries", params=parameters, timeout=20).json()
        found.update((entry["key"], entry["value"]) for entry in page["entries"])
        if page["next"] is None:
            break
        parameters["cursor"] = page["next"]
    assert found == VALUES


def test_answers_stay_in_order_behind_a_large_one(address):
    """The client leaves in the middle of the last."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 20) as connection, connection.makefile("rb") as received:
        connection.sendall(post() + KEY + post())
        assert values(body_of(received)) == VALUES
        assert json.loads(body_of(received))["value"] == VALUES["k3"]
        received.read(1_000)
    assert httpx.get(f"http://{address}/livez").status_code == 200


def test_others_are_answered_while_a_large_answer_is_read(address):
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 20) as connection, connection.makefile("rb") as received:
        connection.sendall(post())
        assert received.readline() == b"HTTP/1.1 200 OK\r\n"
        other = httpx.get(f"http://{address}/v1/stores/counts/keys/k3", timeout=20)
        assert other.json()["value"] == VALUES["k3"]
        assert values(body_of(received)) == VALUES


def test_a_client_of_an_early_version_gets_all_of_it(address):
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 20) as connection, connection.makefile("rb") as received:
        connection.sendall(post("1.0"))
        assert values(received.read().partition(b"\r\n\r\n")[2]) == VALUES
