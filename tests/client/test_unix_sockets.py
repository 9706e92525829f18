"""URLs of Unix sockets: which are taken, and what is said of a server that is not there."""

import click.testing
import httpx
import pytest

from forebay.client import AsyncClient, Client
from forebay.errors import NoReplica
from forebay_client.proxies import proxy_of
from forebay_client.server_urls import http_url
from forebay_client.status_command import status

SOCKET = "unix:/run/forebay/router.sock"


def test_each_socket_is_a_host_of_this_machine():
    urls = {http_url(url) for url in (SOCKET, "unix:///run/forebay/router.sock")}
    (url,) = urls
    assert httpx.URL(url).host.endswith(".localhost")
    assert http_url("unix:/run/forebay/worker.sock") not in urls
    assert http_url("http://router-1:8080") == "http://router-1:8080"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_is_no_path_is_refused(kind):
    with pytest.raises(ValueError, match=r"'unix:router.sock' is not a Unix socket of the form .*\.sock\.$"):
        kind(["http://router-1:8080", "unix:router.sock"])


def test_a_socket_is_reached_directly_whatever_proxy_there_is(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://p:3128")
    assert proxy_of(SOCKET) is None


def test_a_socket_that_is_not_there_is_named(tmp_path):
    url = f"unix:{tmp_path / 'router.sock'}"
    with Client(url) as client, pytest.raises(NoReplica, match=f"None of {url} could be reached"):
        client.get("counts", "k")
    said = click.testing.CliRunner().invoke(status, ["--url", url]).exception
    assert str(said) == f"Nothing answers at {url}: No such file or directory. " + (
        "Name a router or worker with --url."
    )
