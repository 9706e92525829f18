import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from forebay.errors import BadKey, BadParameter, BadRequest, Problem
from forebay.lag import Lag, Tolerance
from forebay.position import encode_opaque
from forebay.store_spec import StoreSpec
from forebay.wire.parameters import STORE_CHANGES_PARAMETERS, parse_parameters
from forebay.wire.server_sent_events import EventReader
from forebay_web.event_streams import Events
from forebay_web.limits import Held, Limit, Peer
from forebay_web.store_changes.cursors import MAX_ID_CHARACTERS, ChangesCursor, decode_id, encode_id
from forebay_web.store_changes.feed import ChangesFeeds
from forebay_web.store_changes.follower import StoreFollower
from forebay_web.store_changes.pages import ChangesPage, PagesRequest
from forebay_web.store_changes.selection import KeySelection, make_selection
from tests.support.cluster import until

LOG, OTHER_LOG, QUERY = b"l" * 8, b"o" * 8, b"q" * 8


def selected(query: str, **of_the_store: str) -> KeySelection:
    fields = {"name": "s", "kind": "key-value", "key": "string", "value": "json", "partitioner": "murmur2"}
    spec = StoreSpec(**{**fields, **of_the_store}, topic="t", partitions=4)
    return make_selection(spec, parse_parameters(query.encode(), STORE_CHANGES_PARAMETERS))


def test_event_id_holds_each_partitions_progress():
    """A partition whose log changed, or whose list was under way, begins anew."""
    cursors = {
        0: ChangesCursor(LOG, 70, 73),
        1: ChangesCursor(LOG, 5, 5, b"here", 3),
        2: ChangesCursor(LOG, 9, 9, after=b"\x01k"),
        4: ChangesCursor(OTHER_LOG, 9, 9),
    }
    found = decode_id(encode_id(QUERY, range(5), cursors), QUERY, range(5))
    assert found == {0: ChangesCursor(LOG, 70, 73), 1: ChangesCursor(LOG, 5, 5), 2: ChangesCursor(LOG, 0, 9)}


def test_event_id_of_another_selection_resumes_nothing():
    """A text that is no event id is refused."""
    text = encode_id(QUERY, range(2), {0: ChangesCursor(LOG, 1, 1), 1: ChangesCursor(LOG, 1, 1)})
    assert decode_id(text, b"?" * 8, range(2)) == {}
    assert decode_id(text, QUERY, range(3)) == {}
    packed = bytes([0, 2, 0, 0, 2, 0])
    assert decode_id(encode_opaque((4, QUERY, LOG, 1, packed)), QUERY, range(2))
    earlier = encode_opaque((3, QUERY, LOG, 1, packed))
    beyond = encode_opaque((4, QUERY, LOG, 2**63, packed))
    cut_short, too_long = (
        encode_opaque((4, QUERY, LOG, 1, packed + end)) for end in (b"\x80", b"\xff" * 9 + b"\1")
    )
    malformed = (earlier, beyond, cut_short, too_long)
    for wrong in ("", "7", "lATECPTQ7p0h1QqAkZMAO8DA", text[:9], text + "AA", "é", *malformed):
        with pytest.raises(ValueError, match=r"."):
            decode_id(wrong, QUERY, range(2))


def test_event_id_of_1024_partitions_fits_proxy_limits():
    """An id that would exceed the header limits of proxies is left empty."""
    billions = {one: ChangesCursor(LOG, 5_000_000_000 + 31 * one, 5_000_000_100 + 31 * one) for one in range(1024)}
    text = encode_id(QUERY, range(1024), billions)
    assert 0 < len(text) <= MAX_ID_CHARACTERS
    assert decode_id(text, QUERY, range(1024)) == billions
    million = {one: ChangesCursor(LOG, 1_900 * one, 1_900 * one) for one in range(1024)}
    assert encode_id(QUERY, range(1024), million), "as far apart as the partitions of an ordinary log"
    apart = {one: cursor._replace(since=one << 40, upper=one << 41) for one, cursor in billions.items()}
    assert encode_id(QUERY, range(1024), apart) == ""


def test_keys_are_followed_in_their_partitions_only():
    selection = selected('keys=["a","b","a"]')
    assert selection.keys == (b"a", b"b")
    assert list(selection.partitions) == sorted(
        {selection.spec.partition_of(b"a"), selection.spec.partition_of(b"b")}
    )
    assert [selection.has(stored) for stored in (b"\x01a", b"\x01ab", b"\x01b")] == [True, False, True]
    assert list(selected('keys=["a"]', partitioner="unknown").partitions) == [0, 1, 2, 3]


def test_ranges_and_prefixes_are_those_of_the_lists():
    assert [selected("prefix=ab").has(b"\x01" + key) for key in (b"a", b"ab", b"abc", b"ac")] == [0, 1, 1, 0]
    assert [selected("from=b&to=d").has(b"\x01" + key) for key in (b"a", b"b", b"d")] == [0, 1, 0]
    assert selected("prefix=a").digest != selected("prefix=b").digest


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("keys=5", BadParameter),
        ("keys=ann", BadParameter),
        ("keys=[]", BadParameter),
        ("keys=[1]", BadKey),
        ('keys=["a"],"x":[', BadParameter),
        (f'keys=["{"a" * 5_000}"]', BadKey),
        (f"keys={['a'] * 501}".replace("'", '"'), BadParameter),
    ],
)
def test_keys_that_are_wrong_are_refused(query, problem):
    with pytest.raises(problem) as caught:
        selected(query)
    assert "key" in caught.value.detail
    assert "body" not in caught.value.detail, "a GET has none"


class Replica:
    """A source with one partition, whose polls answer with what is put to ``news``."""

    def __init__(self) -> None:
        self.selection = selected("")
        self.partitions = [0]
        self.news: asyncio.Queue[ChangesPage] = asyncio.Queue()
        self.pages_read = 0

    def changed(self, since: int, *items: bytes, reset: bool = False) -> ChangesPage:
        source = {"partition": 0, "host": "h:1", "position": "", "role": "active", "lag": Lag(0, 0, 0)._asdict()}
        return ChangesPage(ChangesCursor(LOG, since, since), source, list(items), reset=reset)

    def tolerance(self) -> Tolerance:
        return Tolerance()

    async def page(self, partition: int, cursor: ChangesCursor | None, *, state: bool) -> ChangesPage:
        self.pages_read += 1
        return self.changed(1, b'{"key":"a","value":1}', reset=True)

    async def poll(self, host: str, request: PagesRequest) -> dict[int, ChangesPage | Problem]:
        return {0: await self.news.get()}


@contextlib.asynccontextmanager
async def followed(replica: Replica, feeds: ChangesFeeds) -> AsyncIterator[Events]:
    """A follower that was sent the state."""
    memory = Held(Limit("memory", 1 << 30, "full"), Peer("client"))
    events = StoreFollower(replica, {}, memory, 60_000, 60_000).events(feeds, "all")
    async with contextlib.aclosing(events):
        while "lag" not in await names_of_next(events):
            pass
        yield events


async def names_of_next(events: Events) -> list[str]:
    async with asyncio.timeout(20):
        while (sent := await anext(events)) is None:
            pass
    return [event.name for event in EventReader().feed(sent.encode())]


async def test_a_partition_that_begins_anew_is_read_again_by_each_follower():
    """Also by one that has the offset from which the others follow it again: it may be of another history."""
    replica, feeds = Replica(), ChangesFeeds()
    async with followed(replica, feeds) as first, followed(replica, feeds) as second:
        replica.pages_read = 0
        replica.news.put_nowait(replica.changed(1, reset=True))
        assert await names_of_next(first) == ["reset", "values"]
        assert await names_of_next(second) == ["reset", "values"]
    assert replica.pages_read == 2


async def test_pages_for_all_are_within_the_memory_of_feeds(monkeypatch):
    """Who has not sent one that was dropped reads by itself."""
    monkeypatch.setattr("forebay_web.store_changes.feed._FEEDS_BYTES", 50)
    replica, feeds = Replica(), ChangesFeeds()
    async with followed(replica, feeds) as events:
        replica.pages_read = 0
        replica.news.put_nowait(replica.changed(2, b'{"key":"b","value":2}'))
        assert await names_of_next(events) == ["values"]
        assert replica.pages_read == 0
        replica.news.put_nowait(replica.changed(3, b'{"key":"b","value":"%b"}' % (b"2" * 50)))
        assert await names_of_next(events) == ["reset", "values"]
    assert replica.pages_read == 1


def test_nobody_is_woken_while_nothing_changes():
    """Ten thousand followers of an idle store would take a third of a processor otherwise."""
    page = ChangesPage(ChangesCursor(LOG, 1, 1), {"partition": 0, "host": "h:1"})
    polls: list[ChangesPage] = []
    changed = False

    async def poll(host, request):
        await asyncio.sleep(0)
        polls.append(ChangesPage(ChangesCursor(LOG, 2, 2), page.source, [b"{}"]) if changed else page)
        return {0: polls[-1]}

    async def follow():
        nonlocal changed
        woken: list[int] = []
        with ChangesFeeds().joined("q", SimpleNamespace(poll=poll), lambda: woken.append(len(polls))) as feed:
            feed.follow(0, page)
            await until(lambda: len(polls) > 3)
            assert not woken
            changed = True
            await until(lambda: woken)

    asyncio.run(follow())


def test_an_offset_that_no_page_could_state_is_refused():
    cursor = ChangesCursor(b"12345678", 0, 0, skip=1 << 62)
    assert PagesRequest.decode(PagesRequest({0: cursor}).encode(), 1).cursors[0] == cursor
    with pytest.raises(BadRequest, match="not that of a router"):
        PagesRequest.decode(PagesRequest({0: cursor._replace(skip=10**30)}).encode(), 1)
