"""Everything in a store is listed, also what is behind keys so long that no URL can name them."""

import json
from collections.abc import Iterator
from types import SimpleNamespace

import click.testing
import httpx
import pytest

from forebay.client import Client
from forebay_client.query_command import query
from tests.support.cluster import ONE_PARTITION, running_cluster

LONG = [f"{letter}" * size for letter, size in (("b", 6_100), ("c", 49_200), ("d", 300_000))]
KEYS = ["a", *LONG, "e"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    topology = ONE_PARTITION.replace("partitions = 1", "partitions = 2")
    with running_cluster(tmp_path_factory.mktemp("long"), topology_text=topology) as cluster:
        cluster.put("counts", {key.encode(): b"1" for key in KEYS})
        worker = cluster.start_worker(None, "--num-standby-replicas", "0")
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        yield SimpleNamespace(worker=worker, router=router)


def next_page(address: str, cursor: str, **body: object) -> httpx.Response:
    return httpx.post(
        f"http://{address}/v1/stores/counts/entries?limit=1", json={"cursor": cursor, **body}, timeout=10
    )


@pytest.mark.parametrize("tier", ["worker", "router"])
@pytest.mark.parametrize("reverse", [False, True])
def test_clients_list_all_that_is_behind_long_keys(served, tier, reverse):
    with Client(f"http://{getattr(served, tier)}") as client:
        for page_size in (1, 2, 10):
            entries = client.entries("counts", page_size=page_size, reverse=reverse)
            assert [entry.key for entry in entries] == (KEYS[::-1] if reverse else KEYS)


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_a_long_cursor_is_posted(served, tier):
    address = getattr(served, tier)
    page = httpx.get(f"http://{address}/v1/stores/counts/entries?limit=3").json()
    assert len(page["next"]) > 64 << 10
    rest = next_page(address, page["next"]).json()
    assert [entry["key"] for entry in rest["entries"]] == [KEYS[3]]
    twice = httpx.post(f"http://{address}/v1/stores/counts/entries?cursor=x", json={"cursor": page["next"]})
    assert (twice.status_code, twice.json()["type"]) == (400, "urn:forebay:problem:bad-parameter")
    more = next_page(address, page["next"], keys=[])
    assert (more.status_code, more.json()["type"]) == (400, "urn:forebay:problem:bad-request")
    other = next_page(address, "bm9uc2Vuc2U")
    assert (other.status_code, other.json()["parameter"]) == (400, "cursor")
    no_json = httpx.post(f"http://{address}/v1/stores/counts/entries", content=b"x")
    assert (no_json.status_code, no_json.json()["type"]) == (400, "urn:forebay:problem:bad-request")


def test_the_command_continues_after_a_long_key(served):
    url = ["--url", f"http://{served.router}"]
    first = click.testing.CliRunner().invoke(query, ["counts", "--limit", "3", *url])
    cursor = json.loads(first.output)["next"]
    rest = click.testing.CliRunner().invoke(query, ["counts", "--cursor", cursor, *url])
    assert rest.exit_code == 0, rest.output
    assert [entry["key"] for entry in json.loads(rest.output)["entries"]] == KEYS[3:]
