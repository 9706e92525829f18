"""All pages of a list on standard output: an item a line, and how far behind they may be."""

from __future__ import annotations

import sys
from collections.abc import Callable

import httpx

from forebay.durations import duration
from forebay.lag import Lag, worst_lag
from forebay.standard_streams import print_line
from forebay_client.exact_json import ExactJson


def print_pages(items: str, read: Callable[[dict[str, str]], httpx.Response]) -> None:
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
        page = ExactJson(answer.text)
        for item in page.document[items]:
            print_line(page.text(item))
        count += len(page.document[items])
        lags.append(Lag(**page.document["lag"]))
        missing.update(page.document.get("missing", ()))
        if not page.document["next"]:
            break
        cursor = {"cursor": page.document["next"]}
    print_line(_summary(count, items, worst_lag(lags), missing), to_stderr=True)


def _summary(count: int, items: str, lag: Lag, missing: set[int]) -> str:
    behind = "an unknown time" if lag.time_lag_ms is None else f"at most {duration(lag.time_lag_ms)}"
    left_out = f" Partitions {', '.join(map(str, sorted(missing)))} are missing." if missing else ""
    return f"{count:,} {items}, {behind} behind the log.{left_out}"
