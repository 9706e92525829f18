"""Both tiers with the signed tokens of an issuer: one name and address for all of a company's services."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from forebay.client import Client
from forebay.errors import Unauthenticated
from tests.end_to_end.test_fast_path import exchange, request
from tests.support.cluster import running_cluster, wait_until
from tests.support.issuer import Issuer
from tests.support.tokens import header_of, token_of

KEY = "/v1/stores/counts/keys/a"


@dataclass(frozen=True)
class Served:
    """A router and a worker that accept an issuer's tokens. The worker accepts the router's own one, too."""

    issuer: Issuer
    worker: str
    router: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("jwt")
    (directory / "of-worker").write_text(f"router {token_of('router')}\n")
    (directory / "of-router").write_text(token_of("router"))
    with Issuer({}, audience="forebay") as issuer, running_cluster(directory) as cluster:
        trust = ("--auth-jwt-issuer", issuer.url, "--auth-jwt-audience", "forebay")
        cluster.headers = {"authorization": header_of("router")}
        cluster.put("counts", {b"a": b"1"})
        worker = cluster.start_worker(None, *trust, "--auth-tokens-file", str(directory / "of-worker"))
        cluster.headers = {"authorization": f"Bearer {issuer.token('tests')}"}
        given = ("--auth-jwks-url", f"{issuer.url}/jwks")
        router = cluster.start_router("--worker-token-file", str(directory / "of-router"), *trust, *given)
        cluster.wait_settled(router, replicas=1)
        yield Served(issuer, worker, router)


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_reads_on_every_path_need_a_token_of_the_issuer(served, tier):
    address = getattr(served, tier)
    right, wrong = served.issuer.token("ann"), served.issuer.token("ann", aud="another")
    for query in ("", "?wait_ms=1"):
        for token, status in ((right, 200), (wrong, 401), (None, 401)):
            headers = [] if token is None else [f"Authorization: Bearer {token}"]
            [answer] = exchange(address, request(f"{KEY}{query}", *headers), 1)
            assert answer.startswith(b"HTTP/1.1 %d" % status), answer
    with Client(f"http://{address}", token=right) as client:
        assert client.get("counts", "a").value == 1
        assert list(client.entries("counts"))
    with Client(f"http://{address}", token=wrong) as client, pytest.raises(Unauthenticated, match="'aud'"):
        client.get("counts", "a")


def test_a_token_of_the_file_opens_beside_them(served):
    own = {"authorization": header_of("router")}
    assert httpx.get(f"http://{served.worker}{KEY}", headers=own).status_code == 200
    assert httpx.get(f"http://{served.router}{KEY}", headers=own).status_code == 401


def test_a_browser_follows_with_a_ticket(served):
    signed = {"authorization": f"Bearer {served.issuer.token('ann')}"}
    issued = httpx.post(f"http://{served.router}/v1/tickets", headers=signed, json={"store": "counts"})
    shown = {"ticket": issued.json()["ticket"]}
    with httpx.stream("GET", f"http://{served.router}{KEY}/changes", params=shown) as stream:
        assert stream.status_code == 200
        assert any('"value":1' in line for line in stream.iter_lines() if line.startswith("data:"))


def test_a_new_key_of_the_issuer_needs_no_restart(served):
    served.issuer.rotate()
    signed = {"authorization": f"Bearer {served.issuer.token('ann')}"}
    url = f"http://{served.router}{KEY}"
    wait_until(lambda: httpx.get(url, headers=signed).status_code == 200, "the new key", 40)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--auth-jwt-issuer", "https://a.example"), "--auth-jwt-issuer needs --auth-jwt-audience"),
        (
            ("--auth-jwt-issuer", "https://a.example", "--authenticator", "x"),
            "--authenticator and --auth-jwt-issuer are both given",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_at_start(tmp_path: Path, options, complaint):
    with running_cluster(tmp_path) as cluster, pytest.raises(AssertionError, match=complaint):
        cluster.start_router(*options)
