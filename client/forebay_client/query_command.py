"""``forebay query``: the answer for one key, or a page of a list, on a terminal."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlencode

import click
import httpx
from rich.highlighter import JSONHighlighter
from rich.text import Text

from forebay.client import Answer, Client, ReplicaInfo
from forebay.clock import duration
from forebay.errors import ForebayError, Problem
from forebay.lag import Lag, worst_lag
from forebay.output import Output, json_output, print_line
from forebay.store_kinds import STORE_KINDS
from forebay.store_spec import StoreSpec
from forebay.wire.scans import posted_cursor
from forebay_client.command_target import Server, server_options
from forebay_client.exchange import problem_of_response
from forebay_client.read_plans import REWRITTEN

_OF_KEYS = tuple(kind for kind in STORE_KINDS.values() if kind.lists_each_key)
_KINDS = tuple(kind.items for kind in _OF_KEYS)
"""The lists that a key may have."""
_OF_LISTS = ("from", "to", "prefix", "reverse", "limit", "cursor", "allow_partial")
"""What only lists take."""


def _list_options(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each list that a key may have."""
    for kind in reversed(_OF_KEYS):
        of_all = ", or those of all keys" if kind.lists_all_keys else ""
        option = click.option(f"--{kind.items}", is_flag=True, help=f"List the key's {kind.items}{of_all}.")
        command = option(command)
    return command


class _KeyCommand(click.Command):
    """Says what to do with a key that looks like an option, such as a negative number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            remedy = f"{error.message} A key that begins with a dash follows a bare --."
            raise click.NoSuchOption(error.option_name, remedy, error.possibilities, error.ctx) from None


@click.command(cls=_KeyCommand)
@click.argument("store")
@click.argument("key", required=False)
@server_options
@_list_options
@click.option("--from", metavar="KEY|TIME", help="Begin of the list: the least key, or the earliest time.")
@click.option("--to", metavar="KEY|TIME", help="End of the list, which does not belong to it.")
@click.option("--prefix", metavar="KEY", help="List keys that begin with this.")
@click.option("--reverse", is_flag=True, help="List from the end.")
@click.option("--limit", type=int, help="Maximum number of items in the page.")
@click.option("--cursor", metavar="NEXT", help="List the page after the one that says so in its member next.")
@click.option("--all", "every_page", is_flag=True, help="List every page: an item a line, as JSON.")
@click.option("--allow-partial", is_flag=True, help="List what can be had if partitions cannot be read.")
@click.option("--follow", is_flag=True, help="Print the value and each new one, until Ctrl-C.")
@click.option("--max-record-lag", type=int, help="Maximum number of records the answer may be behind.")
@click.option("--max-time-lag-ms", type=int, help="Maximum milliseconds it may be behind the log.")
@click.option("--max-age-ms", type=int, help="Maximum milliseconds it may be behind the source.")
@click.option("--max-record-age-ms", type=int, help="Maximum milliseconds since the value's record was written.")
@click.option("--skip-old", is_flag=True, help="List without what is older than --max-record-age-ms.")
@click.option("--require-active", is_flag=True, help="Only a running active answers.")
@click.option("--as-of", metavar="TIME", help="The value at that time, of a versioned store.")
@click.option("--min-position", metavar="TOKEN", help="Read at least up to this position.")
@click.option("--wait-ms", type=int, help="How long a replica may wait to meet the bounds or the position.")
@click.option("--timeout-ms", type=int, help="Total time for the request.")
@json_output
def query(
    store: str, key: str | None, server: Server, every_page: bool, follow: bool, output: Output, **options: Any
) -> None:
    """Read one KEY of a STORE and print the answer, or list a page of it, without KEY of all keys.

    Exit status 1 if there is no answer.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    listed = _listed(key, follow, given)
    if every_page and (listed is None or follow):
        raise ForebayError("--all works on lists; leave it out, or leave out the key.")
    parameters_given = {name: value for name, value in given.items() if name not in _KINDS}
    if follow and key is not None:
        _follow(server, store, key, parameters_given)
        return
    parameters = {name: "true" if value is True else str(value) for name, value in parameters_given.items()}
    path = f"/v1/stores/{quote(store, safe='')}"
    if listed is None and key in REWRITTEN:
        body = json.dumps({"keys": [key]})
        found = server.ask("POST", _with(f"{path}/batch-get", parameters), body)
        text, had = _single(server, found)
    else:
        path += _rest(key, listed)
        if every_page and listed is not None:
            _print_pages(listed, lambda cursor: _page(server, path, {**parameters, **cursor}))
            return
        found = _page(server, path, parameters)
        text, had = found.text, found.status_code == 200
    output.show_text(text, _coloured(text))
    if not had:
        sys.exit(1)


def _listed(key: str | None, follow: bool, given: Mapping[str, Any]) -> str | None:
    """What is to be listed, None for a single value; raises ``ForebayError`` if options do not go together."""
    kinds = [kind for kind in _KINDS if kind in given]
    single = "follow" if follow else "as-of" if "as_of" in given else None
    of_lists = next((name for name in _OF_LISTS if name in given), None)
    if len(kinds) > 1:
        raise ForebayError(f"One list at a time: leave out either --{kinds[0]} or --{kinds[1]}.")
    if single and kinds:
        raise ForebayError(
            f"--{single} works on a key's single value; leave out either --{single} or --{kinds[0]}."
        )
    of_one_key = single or next((of.items for of in _OF_KEYS if of.items in kinds and not of.lists_all_keys), None)
    if key is None and of_one_key:
        raise ForebayError(f"--{of_one_key} needs a key; name it after the store.")
    if key is not None and not kinds and of_lists:
        flag = of_lists.replace("_", "-")
        raise ForebayError(
            f"--{flag} works on lists; leave out either --{flag} or the key, or choose a list of the key: "
            "--windows, --sessions or --versions."
        )
    if kinds and "prefix" in given:
        raise ForebayError(f"--prefix works on keys' single values; leave out either --prefix or --{kinds[0]}.")
    if kinds and key == "":
        raise ForebayError(f"The {kinds[0]} of the empty key cannot be read: no path can contain it.")
    return kinds[0] if kinds else "entries" if key is None else None


def _rest(key: str | None, listed: str | None) -> str:
    """A path below that of its store."""
    if key is None:
        return f"/{listed}"
    segment = quote(key, safe="", errors="surrogateescape")
    # Segments of dots alone would be taken for relative path segments.
    return f"/keys/{segment.replace('.', '%2E')}/{listed}" if listed else f"/keys/{segment}"


def _page(server: Server, path: str, parameters: Mapping[str, str]) -> httpx.Response:
    """An answer whose body is a JSON object; a cursor that is too long for a path goes in a body."""
    posted = posted_cursor(parameters.get("cursor", ""))
    if posted is None:
        found = server.get(_with(path, parameters))
    else:
        others = {name: value for name, value in parameters.items() if name != "cursor"}
        found = server.ask("POST", _with(path, others), posted.decode())
    server.document(found)
    return found


def _print_pages(items: str, read: Callable[[dict[str, str]], httpx.Response]) -> None:
    """Print the members ``items`` of the pages that ``read`` returns, given the cursor of each but the first.

    A summary goes to standard error. A page that is a problem is printed, and ends the process with status 1.
    """
    cursor: dict[str, str] = {}
    count, lags = 0, list[Lag]()
    missing: set[int] = set()
    while True:
        answer = read(cursor)
        if answer.status_code != 200:
            print_line(answer.text)
            sys.exit(1)
        page = json.loads(answer.text, parse_float=Decimal)
        for item in page[items]:
            print_line(_exact_text(item, separators=(",", ":")))
        count += len(page[items])
        lags.append(Lag(**page["lag"]))
        missing.update(page.get("missing", ()))
        if not page["next"]:
            break
        cursor = {"cursor": page["next"]}
    print_line(_summary(count, items, worst_lag(lags), missing), to_stderr=True)


def _summary(count: int, items: str, lag: Lag, missing: set[int]) -> str:
    behind = "an unknown time" if lag.time_lag_ms is None else f"at most {duration(lag.time_lag_ms)}"
    left_out = f" Partitions {', '.join(map(str, sorted(missing)))} are missing." if missing else ""
    return f"{count:,} {items}, {behind} behind the log.{left_out}"


def _exact_text(document: Any, **options: Any) -> str:
    """The JSON text of a document with decimals, which are written as numbers, exactly."""
    mark = secrets.token_hex(8)
    text = json.dumps(document, ensure_ascii=False, default=lambda number: f"{mark}{number}", **options)
    return re.sub(f'"{mark}([^"]*)"', r"\1", text)


def _with(path: str, parameters: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(parameters, errors='surrogateescape')}" if parameters else path


def _coloured(text: str) -> Text:
    """A JSON document as a terminal shows it."""
    return JSONHighlighter()(_exact_text(json.loads(text, parse_float=Decimal), indent=2))


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
                print_line(_exact_text(document))
        except Problem as problem:
            print_line(json.dumps(problem.document(), ensure_ascii=False))
            sys.exit(1)


def _client(server: Server) -> Client:
    try:
        return Client(server.url, token=server.token, decimals=True)
    except ValueError as error:
        raise ForebayError(f"{error} Name a router or worker with --url.") from None


def _key_value(server: Server, store: str, key: str) -> Any:
    """The JSON value of a key given on the command line; raises ``Problem``."""
    answer = server.get(f"/v1/stores/{quote(store, safe='')}")
    if answer.status_code != 200:
        raise problem_of_response(answer)
    codec = StoreSpec.from_document(answer.json()).key_codec
    return json.loads(codec.to_json(codec.from_text(key.encode("utf-8", "surrogateescape"))))


def _answer_document(change: Answer | ReplicaInfo) -> dict[str, Any]:
    members = vars(change) if isinstance(change, Answer) else change._asdict()
    # Which this command does not ask for.
    return {name: value for name, value in members.items() if name != "headers"} | {"lag": change.lag.document()}
