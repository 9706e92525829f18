"""Opens a client's stream of a store's changes, on either tier."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from forebay.wire.parameters import ReadParameters, split_query
from forebay_web.event_streams import EventStreams
from forebay_web.limits import Limits
from forebay_web.store_changes.cursors import ChangesCursor, decode_id
from forebay_web.store_changes.feed import ChangesFeeds, Source
from forebay_web.store_changes.follower import StoreFollower
from forebay_web.store_changes.selection import KeySelection

OF_THE_CLIENT = frozenset({"lag_interval_ms", "timeout_ms", "wait_ms"})
"""Parameters in which followers of the same may differ."""


async def open_stream(
    request: Request,
    source: Source,
    parameters: ReadParameters,
    timeout_ms: int,
    feeds: ChangesFeeds,
    limits: Limits,
    streams: EventStreams,
) -> Response:
    """The response that streams a source's changes; raises ``Problem``."""
    peer = limits.peers.of(request.scope)
    cursors = _resumed(request.headers.get("last-event-id"), source.selection)
    memory = limits.memory_of(peer)
    follower = StoreFollower(source, cursors, memory, parameters.lag_interval_ms, timeout_ms)
    return await streams.open(follower.events(feeds, _query(request, source)), request.receive, peer)


def _query(request: Request, source: Source) -> object:
    """What equals that of all who follow the same, with the same bounds."""
    query = split_query(request.scope["query_string"])
    selected = frozenset(item.received for item in query if item.name not in OF_THE_CLIENT)
    return source.selection.spec.name, tuple(source.partitions), selected


def _resumed(last_event_id: str | None, selection: KeySelection) -> dict[int, ChangesCursor]:
    """The cursors in an id; none in one that is of no event, after which every partition is reset."""
    try:
        return decode_id(last_event_id or "", selection.digest, selection.partitions)
    except ValueError:
        return {}
