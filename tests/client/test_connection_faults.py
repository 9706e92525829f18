"""What a command says of a server that it cannot talk to."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click.testing
import pytest
import trustme

from forebay.errors import ForebayError
from forebay_client import command_target
from forebay_client.status_command import status


@contextmanager
def serving(tls: ssl.SSLContext | None) -> Iterator[int]:
    """The port of a server on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(authority) -> Iterator[int]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    with serving(tls) as port:
        yield port


def complaint(url: str) -> tuple[str, int]:
    """The line of ``forebay status``, and its exit status."""
    command_target._http.cache_clear()
    error = click.testing.CliRunner().invoke(status, ["--url", url]).exception
    assert isinstance(error, ForebayError)
    assert ".. " not in str(error)
    return str(error), error.exit_status


def test_certificate_that_is_not_accepted_has_a_remedy(authority, encrypted, monkeypatch, tmp_path):
    message, exit_status = complaint(f"https://localhost:{encrypted}")
    assert message.startswith(f"The certificate of https://localhost:{encrypted} is not accepted: ")
    assert "SSL_CERT_FILE" in message
    assert exit_status == 2
    trusted = tmp_path / "authorities.pem"
    authority.cert_pem.write_to_path(str(trusted))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    assert "Give --url a name that the certificate has." in complaint(f"https://127.0.0.1:{encrypted}")[0]
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert "none.pem' of the variable SSL_CERT_FILE" in complaint(f"https://localhost:{encrypted}")[0]


def test_https_url_of_a_plain_server():
    with serving(None) as port:
        assert complaint(f"https://localhost:{port}") == (
            f"https://localhost:{port} does not answer in TLS: it speaks HTTP. Give an http:// URL with --url.",
            2,
        )


def test_http_url_of_a_server_with_tls(encrypted):
    assert "If it speaks HTTPS, give an https:// URL" in complaint(f"http://localhost:{encrypted}")[0]


def test_nothing_is_said_to_answer_where_nothing_was_tried():
    message, exit_status = complaint("127.0.0.1:18080")
    assert message.startswith("'127.0.0.1:18080' is not the URL of a server")
    assert "begins with http:// or https://" in message
    assert exit_status == 2


def test_a_port_beyond_the_last_is_not_another_one(encrypted):
    """Resolvers take it modulo 65,536, and another server would answer."""
    url = f"https://localhost:{encrypted + 65_536}"
    message, exit_status = complaint(url)
    assert message.startswith(f"{url!r} is not the URL of a server")
    assert message.endswith(
        f"'{encrypted + 65_536}' is not a port: ports are numbers from 1 to 65535. "
        "Name a router or worker with --url."
    )
    assert exit_status == 2
