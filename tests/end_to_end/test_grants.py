"""What principals see and get, on both tiers, with real tokens."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.end_to_end.test_store_changes import StoreFollower
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.issuer import Issuer
from tests.support.tokens import header_of, token_of

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 3

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "secrets"
"""
GRANTS = """
[[grant]]
principal = "router"
stores = ["*"]
verbs = ["read", "list", "follow", "metadata", "admin"]

[[grant]]
principal = "eu"
stores = ["counts"]
verbs = ["read", "list", "follow", "metadata"]
key_prefix = "eu-"

[[grant]]
principal = "page"
stores = ["counts"]
verbs = ["follow"]

[[grant]]
claim = { groups = "analysts" }
stores = ["counts"]
verbs = ["list"]
"""
ALL = [f"{region}-{n}" for region in ("eu", "us") for n in range(10)]


class Door:
    """A process, as a principal meets it."""

    def __init__(self, address: str, authorization: str) -> None:
        self.url = f"http://{address}"
        self.headers = {"authorization": authorization}

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", params=parameters, headers=self.headers)

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, headers=self.headers)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, str], Issuer]]:
    directory = tmp_path_factory.mktemp("grants")
    for name, text in (
        ("tokens", "".join(f"{who} {token_of(who)}\n" for who in ("router", "eu", "page", "nobody"))),
        ("grants.toml", GRANTS),
        ("own", token_of("router")),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    headers = {"authorization": header_of("router")}
    with Issuer({}, audience="forebay") as issuer:
        both = ("--auth-tokens-file", str(directory / "tokens"), "--grants-file", str(directory / "grants.toml"))
        both = (*both, "--auth-jwt-issuer", issuer.url, "--auth-jwt-audience", "forebay")
        (directory / "cluster").mkdir()
        with running_cluster(
            directory / "cluster", topology_text=TOPOLOGY, headers=headers, worker_options=both
        ) as cluster:
            for store in ("counts", "secrets"):
                cluster.put(store, {key.encode(): b"1" for key in ALL})
            worker = cluster.start_worker()
            router = cluster.start_router(*both, "--worker-token-file", str(directory / "own"))
            cluster.wait_settled(router, replicas=1)
            yield cluster, {"worker": worker, "router": router}, issuer


@pytest.fixture(params=["worker", "router"])
def address(request: pytest.FixtureRequest, served: Any) -> str:
    found: str = served[1][request.param]
    return found


def test_keys_beyond_a_prefix_are_refused_whether_they_exist_or_not(address):
    door = Door(address, header_of("eu"))
    assert door.get("/v1/stores/counts/keys/eu-1").json()["value"] == 1
    assert door.get("/v1/stores/counts/keys/eu-nobody").status_code == 404
    refusals = [door.get(f"/v1/stores/counts/keys/{key}") for key in ("us-1", "us-nobody")]
    assert {refusal.status_code for refusal in refusals} == {403}
    assert refusals[0].json() == refusals[1].json()
    assert "only keys that begin with 'eu-'" in refusals[0].json()["detail"]
    assert door.get("/v1/stores/secrets/keys/eu-1").status_code == 403


def test_batches_lists_and_streams_are_refused_whole(address):
    door = Door(address, header_of("eu"))
    found = door.post("/v1/stores/counts/batch-get", {"keys": ["eu-1", "eu-2"]}).json()["results"]
    assert [result["value"] for result in found] == [1, 1]
    assert door.post("/v1/stores/counts/batch-get", {"keys": ["eu-1", "us-2"]}).status_code == 403
    entries = door.get("/v1/stores/counts/entries", prefix="eu-").json()["entries"]
    assert sorted(entry["key"] for entry in entries) == [key for key in ALL if key.startswith("eu-")]
    for parameters in ({}, {"prefix": "e"}, {"from": "eu-", "to": "eu-9"}):
        assert door.get("/v1/stores/counts/entries", **parameters).status_code == 403
    for parameters in ({}, {"keys": '["eu-1","us-1"]'}, {"prefix": "us-"}):
        assert door.get("/v1/stores/counts/changes", **parameters).status_code == 403
    assert door.post("/v1/tickets", {"store": "counts"}).status_code == 403
    assert door.post("/v1/tickets", {"store": "counts", "key": "us-1"}).status_code == 403
    ticket = door.post("/v1/tickets", {"store": "counts", "key": "eu-1"}).json()["ticket"]
    stream = f"{door.url}/v1/stores/counts/keys/eu-1/changes"
    with httpx.stream("GET", stream, params={"ticket": ticket}) as response:
        assert response.status_code == 200


def test_who_may_only_follow_gets_tickets_for_that(address):
    door = Door(address, header_of("page"))
    assert door.post("/v1/tickets", {"store": "counts"}).status_code == 200
    assert door.post("/v1/tickets", {"store": "secrets"}).status_code == 403
    assert door.get("/v1/stores").status_code == 403


def test_a_stream_within_a_prefix_is_followed(served, address):
    class Following(StoreFollower):
        def __init__(self) -> None:
            super().__init__(address, prefix="eu-")
            self._seen = {"authorization": header_of("eu")}

    with Following() as page:
        page.wait_to_show({key: 1 for key in ALL if key.startswith("eu-")})


def test_documents_show_what_may_be_seen(served, address):
    door, everything = Door(address, header_of("eu")), Door(address, header_of("router"))
    for path, member in (("/v1/stores", "stores"), ("/v1/lags", "lags")):
        shown = door.get(path).json()[member]
        assert {one.get("store", one.get("name")) for one in shown} == {"counts"}
        assert len(everything.get(path).json()[member]) > len(shown)
    assert "secrets" in everything.get("/v1/metadata").text
    for path in ("/v1/metadata", "/v1/health", "/v1/timeline", "/v1/stores/counts"):
        found = door.get(path)
        assert found.status_code == 200
        assert "secrets" not in found.text
    for path in ("/v1/stores/secrets", "/v1/metadata/stores/secrets", "/v1/stores/secrets/history"):
        assert door.get(path).status_code == 403
    for path in ("/v1/status", "/metrics", "/openapi.json"):
        assert door.get(path).status_code == 403
        assert everything.get(path).status_code == 200


def test_claims_of_signed_tokens_are_granted_like_names(served, address):
    issuer = served[2]
    analyst = Door(address, f"Bearer {issuer.token('ann', groups=['analysts'])}")
    assert len(analyst.get("/v1/stores/counts/entries").json()["entries"]) == len(ALL)
    assert analyst.get("/v1/stores/counts/keys/eu-1").status_code == 403
    other = Door(address, f"Bearer {issuer.token('ann')}")
    assert other.get("/v1/stores/counts/entries").status_code == 403
    nobody = Door(address, header_of("nobody"))
    assert nobody.get("/v1/stores").status_code == 403
    assert nobody.get("/livez").status_code == 200


def test_a_grant_that_is_taken_away_ends_its_streams(served, address):
    cluster = served[0]
    file = cluster.directory.parent / "grants.toml"
    door = Door(address, header_of("eu"))
    url = f"{door.url}/v1/stores/counts/keys/eu-1/changes"
    try:
        with httpx.stream("GET", url, params={"lag_interval_ms": 100}, headers=door.headers, timeout=30) as stream:
            assert stream.status_code == 200
            file.write_text(GRANTS.replace('"eu"', '"other"'))
            # It ends.
            events = list(stream.iter_raw())
        assert events
        assert door.get("/v1/stores/counts/keys/eu-1").status_code == 403
    finally:
        file.write_text(GRANTS)
        wait_until(lambda: door.get("/v1/stores/counts/keys/eu-1").status_code == 200, "the grant")


def test_grants_need_principals(tmp_path):
    (tmp_path / "grants.toml").write_text(GRANTS)
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        options = ("--grants-file", str(tmp_path / "grants.toml"))
        cluster.start_worker(None, *options, ready=False)
        wait_until(lambda: "--grants-file needs to know who is who" in cluster.logs(), "the refusal")


def test_an_explanation_needs_what_it_shows(served, address):
    """It names workers and their lags."""
    assert Door(address, header_of("eu")).get("/v1/stores/counts/keys/eu-1", explain="true").json()["explain"]
    analyst = Door(address, f"Bearer {served[2].token('ann', groups='analysts')}")
    assert analyst.get("/v1/stores/counts/entries", limit="1").status_code == 200
    refusal = analyst.get("/v1/stores/counts/entries", limit="1", explain="true")
    assert (refusal.status_code, refusal.json()["verb"]) == (403, "metadata")
    assert analyst.get("/v1/stores/counts/entries", limit="1", explain="false").status_code == 200
