"""``forebay query`` and ``forebay status``: answers of a router or a worker, on a terminal."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click
import httpx
from rich.console import Console, RenderableType
from rich.highlighter import JSONHighlighter
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forebay.client import Answer, Client, Provenance
from forebay.client.problems import problem_of_response
from forebay.client.reads import REWRITTEN
from forebay.errors import Forbidden, ForebayError, Problem, Unauthenticated
from forebay.terminal import terminal
from forebay.tokens import token_headers
from forebay.topology import StoreSpec

_DEFAULT_URL = "http://127.0.0.1:8080"
_TOKEN = "FOREBAY_TOKEN"
_ROLE_STYLES = {"active": "bold green", "restoring": "yellow", "standby": "cyan"}


@dataclass(frozen=True)
class _Server:
    """The server that a command asks, and the token it sends."""

    url: str
    token: str | None

    def get(self, path: str) -> httpx.Response:
        """The response, whatever it is; raises ``ForebayError`` if there is none."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: str | None = None) -> httpx.Response:
        """The same for any method, with a JSON body."""
        headers = dict(token_headers(self.token) or {})
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            return _http().request(method, self.url.rstrip("/") + path, headers=headers, content=body)
        except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
            raise ForebayError(
                f"Nothing answers at {self.url}: {error}. Name a router or worker with --url."
            ) from None

    def document(self, answer: httpx.Response) -> dict[str, Any]:
        """An answer's JSON document; raises ``ForebayError`` if it is not one."""
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ForebayError(
                f"{self.url} answers {answer.status_code} with something other than a JSON object, so it is "
                "neither a router nor a worker. Name one with --url."
            )
        return document

    def lags_document(self) -> dict[str, Any]:
        """The document of ``/v1/lags``; raises ``ForebayError``."""
        answer = self.get("/v1/lags")
        if answer.status_code != 200:
            refused = answer.status_code in (Unauthenticated.status, Forbidden.status)
            remedy = (
                f"Give a token with --token-file or {_TOKEN}" if refused else "Name a router or worker with --url"
            )
            raise ForebayError(f"{self.url} answers {answer.status_code} to /v1/lags. {remedy}.")
        return self.document(answer)

    def lags(self) -> list[dict[str, Any]]:
        """Its rows; raises ``ForebayError``."""
        rows: list[dict[str, Any]] = self.lags_document().get("lags", [])
        return rows


def _server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags that select the server; it is called with the ``server``."""

    @click.option("--url", default=_DEFAULT_URL, show_default=True, envvar="FOREBAY_URL", help="Router or worker.")
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"File with the token to send; without it, {_TOKEN} may contain the token.",
    )
    @functools.wraps(function)
    def command(url: str, token_file: Path | None, **rest: Any) -> None:
        function(server=_Server(url, _token(token_file)), **rest)

    return command


def _token(token_file: Path | None) -> str | None:
    try:
        if token_file is None:
            token = os.environ.get(_TOKEN) or None
        else:
            token = token_file.read_text(encoding="utf-8-sig").strip()
        token_headers(token)
    except (OSError, ValueError) as error:
        raise ForebayError(f"{token_file or _TOKEN} does not contain a token: {error}.") from None
    return token


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("store")
@click.argument("key")
@_server_options
@click.option("--windows", is_flag=True, help="List the key's windows.")
@click.option("--follow", is_flag=True, help="Print the value and each new one, until Ctrl-C.")
@click.option("--max-record-lag", type=int, help="Maximum number of records the answer may be behind.")
@click.option("--max-time-lag-ms", type=int, help="Maximum milliseconds it may be behind the log.")
@click.option("--max-age-ms", type=int, help="Maximum milliseconds it may be behind the source.")
@click.option("--require-active", is_flag=True, help="Only a running active answers.")
@click.option("--timeout-ms", type=int, help="Total time for the request.")
def query(
    store: str, key: str, server: _Server, windows: bool, follow: bool, require_active: bool, **bounds: int | None
) -> None:
    """Read one KEY of a STORE and print the answer; exit status 1 if there is none."""
    if follow and windows:
        raise ForebayError("--follow works on a key's single value; leave out either --follow or --windows.")
    if follow:
        given = {name: value for name, value in bounds.items() if value is not None}
        _follow(server, store, key, {**given, "require_active": require_active})
        return
    parameters = {name: str(value) for name, value in bounds.items() if value is not None}
    if require_active:
        parameters["require_active"] = "true"
    path = f"/v1/stores/{quote(store, safe='')}"
    segment = quote(key, safe="", errors="surrogateescape")
    if windows and not segment:
        raise ForebayError("The windows of the empty key cannot be read: no path can contain it.")
    if key in REWRITTEN and not windows:
        body = json.dumps({"keys": [key]})
        found = server.ask("POST", _with(f"{path}/batch-get", parameters), body)
        text, had = _single(server, found)
    else:
        # Segments of dots alone would be taken for relative path segments.
        path += f"/keys/{segment.replace('.', '%2E')}/windows" if windows else f"/keys/{segment}"
        found = server.get(_with(path, parameters))
        server.document(found)
        text, had = found.text, found.status_code == 200
    _print(text)
    if not had:
        sys.exit(1)


def _with(path: str, parameters: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(parameters)}" if parameters else path


def _print(text: str) -> None:
    """Print a JSON document, in colour on a terminal; its numbers unchanged, even if longer than Python's."""
    mark = secrets.token_hex(8)
    document = json.loads(text, parse_float=lambda number: mark + number)
    shown = json.dumps(document, indent=2, ensure_ascii=False)
    shown = re.sub(f'"{mark}([^"]*)"', r"\1", shown)
    terminal().print(JSONHighlighter()(_printable(shown)), soft_wrap=True)


def _printable(document: str) -> str:
    """A JSON document with lone surrogates escaped, since no terminal accepts them as they are."""
    return document.encode("utf-8", "backslashreplace").decode()


def _single(server: _Server, batch: httpx.Response) -> tuple[str, bool]:
    """The one result of a batch, or its problem, and whether it is an answer."""
    document = server.document(batch)
    if batch.status_code != 200:
        return batch.text, False
    (result,) = document["results"]
    if "problem" in result:
        return json.dumps(result["problem"]), False
    # Unparsed: Python might change its numbers.
    return batch.text.removeprefix('{"results":[').removesuffix("]}"), True


@click.command()
@_server_options
@click.option("--watch", is_flag=True, help="Keep showing it as it changes, until Ctrl-C.")
@click.option("--interval-ms", default=500, show_default=True, type=click.IntRange(min=50), help="With --watch.")
@click.option("--json", "as_json", is_flag=True, help="Print /v1/lags unchanged.")
def status(server: _Server, watch: bool, interval_ms: int, as_json: bool) -> None:
    """Show which worker holds which task, in which role, and how far behind it is."""
    console = terminal(markup=True)
    if as_json:
        console.print_json(json.dumps(server.lags_document()))
        return
    if not watch:
        console.print(status_table(server.lags()))
        return
    shown: RenderableType = status_table(server.lags())
    with contextlib.suppress(KeyboardInterrupt), _screen(console) as show:
        while True:
            show(shown)
            time.sleep(interval_ms / 1000)
            try:
                shown = status_table(server.lags())
            except ForebayError as error:
                # The server may be restarting, which is what --watch is used for.
                shown = Text(str(error))


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """A display that replaces its previous content; without a terminal, it prints one after the other."""
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda shown: live.update(shown, refresh=True)


def status_table(lags: list[dict[str, Any]]) -> Table:
    """Tasks by worker; each cell shows role, record lag and time lag, the worst over the task's stores."""
    hosts = sorted({row["host"] for row in lags})
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    stores: dict[str, set[str]] = {}
    for row in lags:
        cells.setdefault((row["task"], row["host"]), []).append(row)
        stores.setdefault(row["task"], set()).add(row["store"])
    table = Table(title="tasks: role, records behind, time behind", title_justify="left")
    table.add_column("task")
    table.add_column("stores")
    for host in hosts:
        table.add_column(host)
    for task in sorted(stores, key=lambda text: [int(part) for part in text.split("_")]):
        shown = [_cell(cells[task, host]) if (task, host) in cells else "" for host in hosts]
        table.add_row(task, ", ".join(sorted(stores[task])), *shown)
    return table


def _cell(rows: list[dict[str, Any]]) -> str:
    role = max((row["role"] for row in rows), key=["standby", "active", "restoring"].index)
    records = [row["record_lag"] for row in rows]
    times = [row["time_lag_ms"] for row in rows]
    behind = "?" if None in records else f"{max(records):,}"
    late = "?" if None in times else f"{max(times):,} ms"
    return f"[{_ROLE_STYLES[role]}]{role}[/] {behind} / {late}"


def _follow(server: _Server, store: str, key: str, options: dict[str, Any]) -> None:
    """Print changes, one JSON document per line; exit status 1 if the key cannot be followed."""
    with contextlib.suppress(KeyboardInterrupt), _client(server) as client:
        try:
            for change in client.changes(store, _key_value(server, store, key), **options):
                document = change.document() if isinstance(change, Problem) else _answer_document(change)
                click.echo(_printable(json.dumps(document, ensure_ascii=False)))
        except Problem as problem:
            click.echo(_printable(json.dumps(problem.document(), ensure_ascii=False)))
            sys.exit(1)


def _client(server: _Server) -> Client:
    try:
        return Client(server.url, token=server.token)
    except ValueError as error:
        raise ForebayError(f"{error} Name a router or worker with --url.") from None


def _key_value(server: _Server, store: str, key: str) -> Any:
    """The JSON value of a key given on the command line; raises ``Problem``."""
    answer = server.get(f"/v1/stores/{quote(store, safe='')}")
    if answer.status_code != 200:
        raise problem_of_response(answer)
    codec = StoreSpec.from_document(answer.json()).key_codec
    return json.loads(codec.to_json(codec.from_text(key.encode("utf-8", "surrogateescape"))))


def _answer_document(change: Answer | Provenance) -> dict[str, Any]:
    members = vars(change) if isinstance(change, Answer) else change._asdict()
    return {**members, "lag": change.lag.document()}


@functools.cache
def _http() -> httpx.Client:
    # Creating one takes longer than most answers, and --watch asks repeatedly.
    return httpx.Client(timeout=35)
