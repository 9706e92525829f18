"""``forebay query``: the answer for one key, on a terminal."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import click
import httpx
from rich.highlighter import JSONHighlighter

from forebay.client import Answer, Client, Provenance
from forebay.client.problems import problem_of_response
from forebay.client.reads import REWRITTEN
from forebay.client.server import Server, server_options
from forebay.errors import ForebayError, Problem
from forebay.terminal import terminal
from forebay.topology import StoreSpec


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("store")
@click.argument("key")
@server_options
@click.option("--windows", "listed", flag_value="windows", help="List the key's windows.")
@click.option("--sessions", "listed", flag_value="sessions", help="List the key's sessions.")
@click.option("--versions", "listed", flag_value="versions", help="List the key's versions.")
@click.option("--follow", is_flag=True, help="Print the value and each new one, until Ctrl-C.")
@click.option("--max-record-lag", type=int, help="Maximum number of records the answer may be behind.")
@click.option("--max-time-lag-ms", type=int, help="Maximum milliseconds it may be behind the log.")
@click.option("--max-age-ms", type=int, help="Maximum milliseconds it may be behind the source.")
@click.option("--require-active", is_flag=True, help="Only a running active answers.")
@click.option("--as-of", metavar="TIME", help="The value at that time, of a versioned store.")
@click.option("--timeout-ms", type=int, help="Total time for the request.")
def query(
    store: str,
    key: str,
    server: Server,
    listed: str | None,
    follow: bool,
    require_active: bool,
    as_of: str | None,
    **bounds: int | None,
) -> None:
    """Read one KEY of a STORE and print the answer; exit status 1 if there is none."""
    if store.startswith("-"):
        # Unknown options are taken for keys, which may begin with a hyphen; stores' names do not.
        raise click.NoSuchOption(store)
    if listed and as_of is not None:
        raise ForebayError(f"--as-of works on a key's single value; leave out either --as-of or --{listed}.")
    if follow and (listed or as_of is not None):
        other = f"--{listed}" if listed else "--as-of"
        raise ForebayError(f"--follow works on a key's present value; leave out either --follow or {other}.")
    if follow:
        given = {name: value for name, value in bounds.items() if value is not None}
        _follow(server, store, key, {**given, "require_active": require_active})
        return
    parameters = {name: str(value) for name, value in bounds.items() if value is not None}
    if require_active:
        parameters["require_active"] = "true"
    if as_of is not None:
        parameters["as_of"] = as_of
    path = f"/v1/stores/{quote(store, safe='')}"
    segment = quote(key, safe="", errors="surrogateescape")
    if listed and not segment:
        raise ForebayError(f"The {listed} of the empty key cannot be read: no path can contain it.")
    if key in REWRITTEN and not listed:
        body = json.dumps({"keys": [key]})
        found = server.ask("POST", _with(f"{path}/batch-get", parameters), body)
        text, had = _single(server, found)
    else:
        # Segments of dots alone would be taken for relative path segments.
        path += f"/keys/{segment.replace('.', '%2E')}/{listed}" if listed else f"/keys/{segment}"
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


def _single(server: Server, batch: httpx.Response) -> tuple[str, bool]:
    """The one result of a batch, or its problem, and whether it is an answer."""
    document = server.document(batch)
    if batch.status_code != 200:
        return batch.text, False
    (result,) = document["results"]
    if "problem" in result:
        return json.dumps(result["problem"]), False
    # Unparsed: Python might change its numbers.
    return batch.text.removeprefix('{"results":[').removesuffix("]}"), True


def _follow(server: Server, store: str, key: str, options: dict[str, Any]) -> None:
    """Print changes, one JSON document per line; exit status 1 if the key cannot be followed."""
    with contextlib.suppress(KeyboardInterrupt), _client(server) as client:
        try:
            for change in client.changes(store, _key_value(server, store, key), **options):
                document = change.document() if isinstance(change, Problem) else _answer_document(change)
                click.echo(_printable(json.dumps(document, ensure_ascii=False)))
        except Problem as problem:
            click.echo(_printable(json.dumps(problem.document(), ensure_ascii=False)))
            sys.exit(1)


def _client(server: Server) -> Client:
    try:
        return Client(server.url, token=server.token)
    except ValueError as error:
        raise ForebayError(f"{error} Name a router or worker with --url.") from None


def _key_value(server: Server, store: str, key: str) -> Any:
    """The JSON value of a key given on the command line; raises ``Problem``."""
    answer = server.get(f"/v1/stores/{quote(store, safe='')}")
    if answer.status_code != 200:
        raise problem_of_response(answer)
    codec = StoreSpec.from_document(answer.json()).key_codec
    return json.loads(codec.to_json(codec.from_text(key.encode("utf-8", "surrogateescape"))))


def _answer_document(change: Answer | Provenance) -> dict[str, Any]:
    members = vars(change) if isinstance(change, Answer) else change._asdict()
    return {**members, "lag": change.lag.document()}
