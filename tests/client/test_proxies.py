"""Proxies that the environment names: used, and named in what is said."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import click.testing
import httpx
import pytest

from forebay.client import AsyncClient, Client
from forebay.errors import Problem
from forebay_client.proxies import Proxy, proxies_of, proxy_of
from forebay_client.query_command import query
from forebay_client.status_command import status
from tests.support.answering_server import answering_server
from tests.support.cluster import free_port

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
SERVER = "http://router.invalid:8080"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, SERVER, None),
        ({"HTTP_PROXY": "http://p:3128"}, SERVER, Proxy("http://p:3128", "HTTP_PROXY")),
        ({"http_proxy": "p:3128"}, SERVER, Proxy("http://p:3128", "HTTP_PROXY")),
        ({"HTTP_PROXY": "http://p:3128"}, "https://router.invalid", None),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://router.invalid", Proxy("http://p:3128", "HTTPS_PROXY")),
        ({"ALL_PROXY": "http://p:3128"}, SERVER, Proxy("http://p:3128", "ALL_PROXY")),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "router.invalid"}, SERVER, None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": ".invalid"}, SERVER, None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "*"}, SERVER, None),
        ({"HTTP_PROXY": "http://p:3128"}, "http://127.0.0.1:8080", None),
        ({"HTTP_PROXY": "http://p:3128"}, "http://[::1]:8080", None),
        ({"HTTP_PROXY": "http://p:3128"}, "http://localhost:8080", None),
    ],
)
def test_which_proxy_a_server_is_reached_through(environment, variables, url, proxy):
    for name, value in variables.items():
        environment.setenv(name, value)
    assert proxy_of(url) == proxy
    assert proxies_of([url]) == ({} if proxy is None else {url: proxy})


@pytest.mark.parametrize(
    ("no_proxy", "exempt", "others"),
    [
        ("10.0.0.0/8", ["http://10.1.2.3:8080"], ["http://11.1.2.3", "http://router-1"]),
        ("2001:db8::/32", ["http://[2001:db8::1]"], ["http://[2001:db9::1]"]),
        ("192.0.2.7", ["http://192.0.2.7:8080"], ["http://192.0.2.70"]),
        ("192.0.2.7:80,[2001:db8::1]:80", ["http://192.0.2.7", "http://[2001:db8::1]"], ["http://192.0.2.7:81"]),
        ("svc.local", ["http://svc.local", "http://router.SVC.local.:80"], ["http://notsvc.local"]),
        (".svc.local", ["http://router.svc.local"], ["http://svc.local"]),
        ("*.svc.local", ["http://router.svc.local"], ["http://svc.local"]),
        ("router-1:8080", ["http://router-1:8080"], ["http://router-1"]),
        ("router-1:443", ["https://router-1"], ["http://router-1"]),
        ("other, router-1 ,", ["http://router-1"], ["http://router-2"]),
        ("router-2,*", ["http://router-1", "http://192.0.2.7"], []),
        (":80,,10.0.0.0/99", [], ["http://router-1", "http://10.0.0.0"]),
    ],
)
def test_no_proxy_is_read_as_go_reads_it(environment, no_proxy, exempt, others):
    environment.setenv("ALL_PROXY", "http://p:3128")
    environment.setenv("NO_PROXY", no_proxy)
    assert [proxy_of(url) for url in exempt] == [None] * len(exempt)
    assert all(proxy_of(url) for url in others)


def test_a_proxys_password_is_not_said():
    assert str(Proxy("http://me:secret@p:3128", "HTTP_PROXY")) == "the proxy http://p:3128 of HTTP_PROXY"


@pytest.mark.parametrize("proxy", ["ftp://p", "http://", "socks5://p:1080", "http://p:x", "http://p:65537"])
def test_what_is_no_usable_proxy_is_refused_with_its_variable(environment, proxy):
    environment.setenv("HTTP_PROXY", proxy)
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=r"HTTP_PROXY.*NO_PROXY"):
            kind(SERVER)
    result = click.testing.CliRunner().invoke(status, ["--url", SERVER])
    assert "HTTP_PROXY" in str(result.exception)


class Forwarding(BaseHTTPRequestHandler):
    """Sends every request on to one server, whichever it names, or answers 403."""

    server: Any

    def do_GET(self) -> None:
        self.server.hosts.append(urlsplit(self.path).netloc)
        if self.server.target is None:
            self.send_error(403)
            return
        path = urlsplit(self.path)
        url = f"{self.server.target}{path.path}?{path.query}"
        with build_opener(ProxyHandler({})).open(Request(url)) as answer:
            body = answer.read()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def proxy_to(target: str | None) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Forwarding) as proxy:
        proxy.target, proxy.hosts = target, []  # type: ignore[attr-defined]
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


def blocking(url: str) -> Any:
    with Client(url, timeout_ms=5_000) as client:
        return client.get("s", "a").value


def awaited(url: str) -> Any:
    async def read() -> Any:
        async with AsyncClient(url, timeout_ms=5_000) as client:
            return (await client.get("s", "a")).value

    return asyncio.run(read())


CALLS = pytest.mark.parametrize("call", [blocking, awaited])


@CALLS
def test_a_read_goes_through_the_proxy(call, environment):
    with answering_server() as server, proxy_to(server.url) as proxy:
        environment.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        assert call(SERVER) == "a"
        assert set(proxy.hosts) == {"router.invalid:8080"}


@CALLS
def test_loopback_and_custom_transport_bypass_the_proxy(call, environment):
    environment.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with answering_server() as server:
        assert call(server.url) == "a"
        with Client(server.url, transport=httpx.HTTPTransport()) as client:
            assert client.get("s", "a").value == "a"


@CALLS
def test_a_proxy_that_cannot_be_reached_is_named(call, environment):
    proxy = f"http://127.0.0.1:{free_port()}"
    environment.setenv("HTTP_PROXY", proxy)
    with pytest.raises(Problem, match=f"router.invalid.* through the proxy {proxy} of HTTP_PROXY"):
        call(SERVER)


@CALLS
def test_a_proxy_that_refuses_is_named(call, environment):
    with proxy_to(None) as proxy:
        environment.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        with pytest.raises(Problem, match=r"answered 403 .* through the proxy .* of HTTP_PROXY") as info:
            call(SERVER)
    assert info.value.status == 403


@pytest.mark.parametrize(("command", "arguments"), [(query, ["s", "a"]), (status, [])])
def test_commands_name_the_proxy(command, arguments, environment):
    proxy = f"http://127.0.0.1:{free_port()}"
    environment.setenv("HTTP_PROXY", proxy)
    result = click.testing.CliRunner().invoke(command, [*arguments, "--url", SERVER])
    assert f"through the proxy {proxy} of HTTP_PROXY" in str(result.exception)
    with proxy_to(None) as refusing:
        environment.setenv("HTTP_PROXY", f"http://127.0.0.1:{refusing.server_port}")
        result = click.testing.CliRunner().invoke(command, [*arguments, "--url", SERVER])
    assert "through the proxy" in str(result.exception)
