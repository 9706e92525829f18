"""The server that a command asks, from its flags."""

from __future__ import annotations

import functools
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx

from forebay.bearer_tokens import token_headers
from forebay.cli import FILE
from forebay.errors import Forbidden, ForebayError, NotReady, Unauthenticated
from forebay.file_access import cause
from forebay_client.exchange import problem_of_response
from forebay_client.httpx_clients import NoCookies, client_options, extensions
from forebay_client.proxies import Proxy, proxy_of
from forebay_client.server_urls import http_url, server_urls, socket_paths

_DEFAULT_URL = "http://127.0.0.1:8080"
_TOKEN = "FOREBAY_TOKEN"
_AUTHORITIES = "SSL_CERT_FILE"
_TIMEOUT = httpx.Timeout(35, connect=5)
"""In seconds: a server answers within 30, and is connected to long before."""
_ANOTHER = "Name a router or worker with --url."
_WRONG_NAME = (62, 64)
"""OpenSSL's codes of certificates for other names and addresses."""
_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons where no TLS comes."""


@dataclass(frozen=True)
class Server:
    """The server that a command asks, and the token it sends."""

    url: str
    token: str | None

    @property
    def _proxy(self) -> Proxy | None:
        try:
            return proxy_of(self.url)
        except ValueError as error:
            raise ForebayError(str(error)) from None

    @property
    def _http_url(self) -> str:
        try:
            return http_url(*server_urls(self.url))
        except ValueError as error:
            raise ForebayError(f"{error} Name a router or worker with --url.") from None

    @property
    def _place(self) -> str:
        """What messages call the server."""
        proxy = self._proxy
        return self.url if proxy is None else f"{self.url}, through {proxy},"

    def get(self, path: str) -> httpx.Response:
        """The response, whatever it is; raises ``ForebayError`` if there is none."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: str | None = None) -> httpx.Response:
        """The same for any method, with a JSON body."""
        headers = dict(token_headers(self.token) or {})
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            url = self._http_url + path
            http = _http(self.url, self._proxy)
            return http.request(method, url, headers=headers, content=body, extensions=extensions(url))
        except httpx.TransportError as error:
            nothing = ForebayError(_fault_of(error, self.url, self._place))
            if isinstance(error, httpx.NetworkError | httpx.TimeoutException) and _tls_fault(error) is None:
                # It may be about to start.
                nothing.exit_status = 1
            raise nothing from None

    def document(self, answer: httpx.Response) -> dict[str, Any]:
        """An answer's JSON document; raises ``ForebayError`` if it is not one."""
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ForebayError(
                f"{self._place} answers {answer.status_code} with something other than a JSON object, so it is "
                "neither a router nor a worker. Name one with --url."
            )
        return document

    def described(self, path: str) -> dict[str, Any]:
        """The document of a path that every router and worker has; raises ``ForebayError``."""
        answer = self.get(path)
        if answer.status_code == NotReady.status:
            not_ready = ForebayError(f"{self.url} is not ready: {problem_of_response(answer).detail}")
            not_ready.exit_status = 1
            raise not_ready
        if answer.status_code != 200:
            raise ForebayError(
                f"{self._place} answers {answer.status_code} to {path}{self._why(answer.status_code)}"
            )
        return self.document(answer)

    def _why(self, status: int) -> str:
        """What follows from the status of an answer that is an error, and the remedy."""
        if status not in (Unauthenticated.status, Forbidden.status):
            return ". Name a router or worker with --url."
        if self.token is None:
            return f". Give a token with --token-file or {_TOKEN}."
        cause = "it does not know the token that was sent"
        if status == Forbidden.status:
            cause = "the token that was sent does not allow it"
        return f": {cause}. Give another with --token-file or {_TOKEN}."

    def lags(self) -> list[dict[str, Any]]:
        """The rows of ``/v1/lags``; raises ``ForebayError``."""
        rows: list[dict[str, Any]] = self.described("/v1/lags").get("lags", [])
        return rows

    def findings(self) -> list[dict[str, Any]]:
        """The findings of ``/v1/health``, none where this token may not read them; raises ``ForebayError``."""
        answer = self.get("/v1/health")
        found: list[dict[str, Any]] = self.document(answer).get("findings", [])
        return found

    def partitions(self) -> dict[str, int]:
        """How many partitions each store has; raises ``ForebayError``."""
        return {store["name"]: store["partitions"] for store in self.described("/v1/stores").get("stores", [])}


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags that select the server; it is called with the ``server``."""

    @click.option(
        "--url",
        default=_DEFAULT_URL,
        show_default=True,
        envvar="FOREBAY_URL",
        show_envvar=True,
        help="Router or worker.",
    )
    @click.option(
        "--token-file",
        type=FILE,
        metavar="FILE",
        help=f"File with the token to send; without it, {_TOKEN} may contain the token.",
    )
    @functools.wraps(function)
    def command(url: str, token_file: Path | None, **rest: Any) -> None:
        function(server=Server(url, token_of(token_file)), **rest)

    return command


def token_of(token_file: Path | None) -> str | None:
    """The token in a file, or in the environment without one; raises ``ForebayError`` if it is none."""
    try:
        if token_file is None:
            token = os.environ.get(_TOKEN) or None
        else:
            token = token_file.read_text(encoding="utf-8-sig").strip()
        token_headers(token)
    except OSError as error:
        reason = cause(error, token_file or "")
        raise ForebayError(f"The token file {token_file} cannot be read: {reason}.") from None
    except ValueError as error:
        raise ForebayError(f"{token_file or _TOKEN} does not contain a token: {error}.") from None
    return token


def _fault_of(error: Exception, url: str, place: str) -> str:
    """What happened and the remedy, for what ``httpx`` raised; ``place`` is the server's URL and its proxy."""
    tls = _tls_fault(error)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return _of_certificate(tls, place)
    if tls is not None and tls.reason in _PLAIN:
        return f"{place} does not answer in TLS: it speaks HTTP. Give an http:// URL with --url."
    closed = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and url.startswith("http:")
    remedy = "If it speaks HTTPS, give an https:// URL with --url." if closed else _ANOTHER
    reason = re.sub(r"^\[Errno \d+\] | \(_ssl\.c:\d+\)$|\.$", "", str(error)) or "it takes too long"
    return f"Nothing answers at {place}: {reason}. {remedy}"


def _tls_fault(error: BaseException | None) -> ssl.SSLError | None:
    """The fault of TLS that is behind an error, None without one."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _of_certificate(error: ssl.SSLCertVerificationError, place: str) -> str:
    remedy = "Name the file of the authority that issued it in the variable SSL_CERT_FILE."
    if error.verify_code in _WRONG_NAME:
        remedy = "Give --url a name that the certificate has."
    return f"The certificate of {place} is not accepted: {error.verify_message.rstrip('.')}. {remedy}"


@functools.cache
def _http(url: str, proxy: Proxy | None) -> httpx.Client:
    # Creating one takes longer than most answers, and --watch asks repeatedly.
    proxies = {} if proxy is None else {url: proxy}
    options = client_options(httpx.HTTPTransport, _trusted(), proxies, socket_paths([url]))
    return httpx.Client(timeout=_TIMEOUT, cookies=NoCookies(), **options)


def _trusted() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        path = os.environ.get(_AUTHORITIES, "")
        no_certificate = isinstance(error, ssl.SSLError)
        reason = "it contains no certificate in PEM form" if no_certificate else cause(error, path)
        raise ForebayError(
            f"The file {path!r} of the variable {_AUTHORITIES} cannot be used: {reason}. Name one with the "
            "certificates of the authorities to trust, or unset the variable."
        ) from None
