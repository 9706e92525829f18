import asyncio
import sys

import pytest

from forebay.wire.server_sent_events import EncodedEvents
from forebay_web.event_streams import EventStreams
from forebay_web.limits import Limit, Peer
from tests.support.cluster import until

SCOPE = {"type": "http", "headers": [], "asgi": {"spec_version": "2.4"}}


@pytest.mark.parametrize("sent_first", [1, 2])
def test_a_stream_that_waits_holds_nothing_that_it_has_sent(sent_first):
    """A page has a quarter of a megabyte, and ten thousand streams wait for their next."""
    pages = [EncodedEvents(bytes(1_000)) for _ in range(sent_first)]
    alone = list(map(sys.getrefcount, pages))
    sent: list[int] = []

    async def events():
        for page in pages:
            yield page
            del page
        await asyncio.Event().wait()

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(len(message.get("body", b"")))

    async def stream():
        streams = EventStreams(Limit("streams", 8, "full"))
        response = await streams.open(events(), receive, Peer("p"))
        sending = asyncio.ensure_future(response(SCOPE, receive, send))
        await until(lambda: sent.count(1_000) == len(pages))
        await asyncio.sleep(0)
        assert list(map(sys.getrefcount, pages)) == alone
        streams.end_all()
        await sending

    asyncio.run(stream())
