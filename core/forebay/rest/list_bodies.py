"""The body of list answers: what is known at once precedes the items, what depends on all of them follows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from forebay.lag import Lag, worst_lag
from forebay.position import decode_position, encode_position, merged_position
from forebay.rest.answers import lag_json
from forebay.rest.scans import Cursor, Scan


def list_head(scan: Scan) -> bytes:
    """Up to and including the opening bracket of the items."""
    key = b"" if scan.plain is None else b'"key":%b,' % scan.spec.key_codec.to_json(scan.plain)
    return b'{"store":%b,%b"%b":[' % (json.dumps(scan.spec.name).encode(), key, scan.route.items.encode())


def list_tail(sources: Iterable[dict[str, Any]], following: Cursor | None, missing: Iterable[int]) -> bytes:
    """From the closing bracket on: ``next``, ``complete``, the worst lag, and every partition's."""
    partitions = sorted(sources, key=lambda source: int(source["partition"]))
    absent = sorted(missing)
    worst = worst_lag([Lag(**source["lag"]) for source in partitions])
    return b'],"next":%b,"complete":%b,%b"lag":%b,"partitions":%b}' % (
        json.dumps(None if following is None else following.encode()).encode(),
        b"false" if absent else b"true",
        b'"missing":%b,' % json.dumps(absent).encode() if absent else b"",
        lag_json(worst),
        json.dumps(partitions, separators=(",", ":")).encode(),
    )


def joined_position(sources: list[dict[str, Any]]) -> str | None:
    """One token for several partitions' positions; None if there are none or their logs differ."""
    positions = [decode_position(source["position"]) for source in sources]
    if len({position.log for position in positions}) != 1:
        return None
    return encode_position(merged_position(positions))
