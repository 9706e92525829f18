"""The body of list answers: what is known at once precedes the items, what depends on all of them follows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any

from forebay.lag import Lag, worst_lag
from forebay.position import decode_position, encode_position, merged_position
from forebay.unproven import united
from forebay.wire.answers import lag_json
from forebay.wire.scan_pages import UNPROVEN
from forebay.wire.scans import Cursor, Scan


def list_head(scan: Scan) -> bytes:
    """Up to and including the opening bracket of the items."""
    key = b"" if scan.plain is None else b'"key":%b,' % scan.spec.key_codec.to_json(scan.plain)
    return b'{"store":%b,%b"%b":[' % (json.dumps(scan.spec.name).encode(), key, scan.route.items.encode())


def list_tail(sources: Iterable[dict[str, Any]], following: Cursor | None, missing: Iterable[int]) -> bytes:
    """From the closing bracket on: ``next``, ``complete``, why not, the worst lag, and every partition's."""
    listed = sorted(sources, key=lambda source: int(source["partition"]))
    partitions = [without_unproven(source) for source in listed]
    absent = sorted(missing)
    unproven = united(chain.from_iterable(source.get(UNPROVEN, ()) for source in listed))
    worst = worst_lag([Lag(**source["lag"]) for source in partitions])
    return b'],"next":%b,"complete":%b,%b%b"lag":%b,"partitions":%b}' % (
        json.dumps(None if following is None else following.encode()).encode(),
        b"false" if absent or unproven else b"true",
        b'"missing":%b,' % json.dumps(absent).encode() if absent else b"",
        b'"unproven":%b,' % _json([one._asdict() for one in unproven]) if unproven else b"",
        lag_json(worst),
        _json(partitions),
    )


def without_unproven(source: dict[str, Any]) -> dict[str, Any]:
    """A partition's provenance without the unproven ranges that its page has beside it."""
    return {name: value for name, value in source.items() if name != UNPROVEN}


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def joined_position(sources: list[dict[str, Any]]) -> str | None:
    """One token for several partitions' positions; None if there are none or their logs differ."""
    positions = [decode_position(source["position"]) for source in sources]
    if len({position.log for position in positions}) != 1:
        return None
    return encode_position(merged_position(positions))
