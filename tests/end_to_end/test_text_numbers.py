"""``numbers=text``: 64-bit integers that JavaScript would round, in every kind of answer of both tiers."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster, unstamped

KIND_FIELDS = {
    "counts": "",
    "hours": 'kind = "window"\nwindow_size_ms = 1000\nretention_ms = 1000000000',
    "prices": 'kind = "versioned"\nhistory_retention_ms = 1000000000',
}
TOPOLOGY = 'application_id = "numbers"\n[[subtopology]]\nname = "all"\npartitions = 2\n' + "".join(
    f'[[subtopology.store]]\nname = "{name}"\nkey = "int64"\nvalue = "int64"\n{fields}\n'
    for name, fields in KIND_FIELDS.items()
)
KEYS = [-(2**63), 2**53, 2**53 + 1, 2**63 - 1]
TEXTS = [str(key) for key in KEYS]
MISSING = str(2**53 + 3)


def packed(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_cluster(tmp_path_factory.mktemp("numbers"), topology_text=TOPOLOGY) as cluster:
        fill(cluster)
        worker = cluster.start_worker()
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        yield {"worker": f"http://{worker}", "router": f"http://{router}"}


def fill(cluster: Cluster) -> None:
    for store in ("counts", "prices"):
        cluster.put(store, {packed(key): packed(key) for key in KEYS})
    cluster.put("hours", {packed(key) + packed(5000): packed(key) for key in KEYS})


@pytest.fixture(params=["worker", "router"])
def stores(request: pytest.FixtureRequest, servers: dict[str, str]) -> str:
    return f"{servers[request.param]}/v1/stores"


def read(url: str, **parameters: str) -> Any:
    return httpx.get(url, params=parameters).json()


@pytest.mark.parametrize(("key", "text"), list(zip(KEYS, TEXTS, strict=True)))
def test_a_key_and_its_value(stores, key, text):
    for store in ("counts", "prices"):
        url = f"{stores}/{store}/keys/{text}"
        for _ in range(2):
            # The second read of each form is answered from what was prepared for the first.
            assert [read(url, numbers="text")[name] for name in ("key", "value")] == [text, text]
            assert [read(url)[name] for name in ("key", "value")] == [key, key]
            assert [read(url, numbers="json")[name] for name in ("key", "value")] == [key, key]


def test_a_miss(stores):
    url = f"{stores}/counts/keys/{MISSING}"
    assert read(url, numbers="text")["key"] == MISSING
    assert read(url)["key"] == int(MISSING)


def test_a_batch_takes_strings_and_numbers(stores):
    url = f"{stores}/counts/batch-get"
    body = {"keys": [*TEXTS, *KEYS, MISSING, "x", 1.5]}
    *found, miss, bad, broken = httpx.post(url, params={"numbers": "text"}, json=body).json()["results"]
    assert [(one["key"], one["value"]) for one in found] == list(zip(TEXTS * 2, TEXTS * 2, strict=True))
    assert (miss["key"], miss["problem"]["key"]) == (MISSING, MISSING)
    assert bad["problem"]["type"] == broken["problem"]["type"] == "urn:forebay:problem:bad-key"
    assert (bad["key"], broken["key"]) == ("x", 1.5)
    numbers = httpx.post(url, json={"keys": [*KEYS, TEXTS[0]]}).json()["results"]
    assert [one.get("value") for one in numbers] == [*KEYS, None]
    assert numbers[-1]["problem"]["type"] == "urn:forebay:problem:bad-key"


def test_lists(stores):
    url = f"{stores}/counts/entries"
    assert unstamped(read(url, numbers="text")["entries"]) == [{"key": text, "value": text} for text in TEXTS]
    assert [one["key"] for one in read(url)["entries"]] == KEYS
    bounded = read(url, numbers="text", **{"from": TEXTS[1], "to": TEXTS[2]})
    assert [one["key"] for one in bounded["entries"]] == TEXTS[1:2]
    windows = read(f"{stores}/hours/windows", numbers="text")["windows"]
    assert [(one["key"], one["value"]) for one in windows] == list(zip(TEXTS, TEXTS, strict=True))
    assert {one["start_ms"] for one in windows} == {5000}
    of_one = read(f"{stores}/hours/keys/{TEXTS[2]}/windows", numbers="text")
    assert (of_one["key"], [one["value"] for one in of_one["windows"]]) == (TEXTS[2], [TEXTS[2]])
    versions = read(f"{stores}/prices/keys/{TEXTS[2]}/versions", numbers="text")
    assert (versions["key"], [one["value"] for one in versions["versions"]]) == (TEXTS[2], [TEXTS[2]])


def test_pages_of_a_list_keep_their_form(stores):
    first = read(f"{stores}/counts/entries", numbers="text", limit="2")
    second = read(f"{stores}/counts/entries", numbers="text", cursor=first["next"])
    assert [one["key"] for one in first["entries"] + second["entries"]] == TEXTS


@pytest.mark.parametrize(("key", "name"), [(TEXTS[2], "value"), (MISSING, "absent")])
def test_a_stream(stores, key, name):
    with httpx.stream("GET", f"{stores}/counts/keys/{key}/changes", params={"numbers": "text"}) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == f"event: {name}"
        document = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
    assert document["key"] == key
    assert document.get("value") == (key if name == "value" else None)


def test_another_form_is_refused(stores):
    problem = read(f"{stores}/counts/keys/1", numbers="hex")
    assert (problem["type"], problem["parameter"]) == ("urn:forebay:problem:bad-parameter", "numbers")
