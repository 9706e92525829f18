"""Lists that a partition-aware client merges: the workers are scripted, and clocks move only as a test says."""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from forebay.client import Entry
from forebay.errors import BadParameter, LagExceedsTolerance, NoReplica
from forebay.lag import Lag
from forebay.position import Position, encode_position, log_digest
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import ClusterMap, Generation, HostInfo, StreamsMetadata
from forebay.task_ids import TopicPartition
from forebay.wire.list_routes import SCAN_ROUTES
from forebay.wire.parameters import ENTRIES_PARAMETERS, ReadParameters, parse_parameters
from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE, ScanPage
from forebay.wire.scans import SCAN_HEADER, Cursor, Scan, make_scan
from forebay_client.exchange import Discard, Pause, Plan, Send
from forebay_client.options import ALL_KEYS
from forebay_client.partitioned_exchange import PartitionedExchange
from forebay_client.read_plans import ClientReads, ListRequest
from forebay_client.results import Page
from forebay_client.scattered_page import share

ENTRIES = next(route for route in SCAN_ROUTES if route.items == "entries")
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 2)
HOSTS = [HostInfo(name, 1) for name in "ab"]
MAP = ClusterMap(
    Generation(1, 1),
    tuple(
        StreamsMetadata(host, active_topic_partitions=frozenset({TopicPartition("t", number)}))
        for number, host in enumerate(HOSTS)
    ),
)
Reply = httpx.Response | httpx.RequestError


class Cluster:
    """Two workers, each the only replica of a partition, and the clock of a client that reads from them."""

    def __init__(self, *partitions: str) -> None:
        self._keys = [[b"\x01" + letter.encode() for letter in letters] for letters in partitions]
        self.now_s = 1_000.0
        self.lag = Lag(0, 0, None)
        self.requested: list[Send] = []
        self.discarded = 0
        self.before: Callable[[int, Send], Reply | None] = lambda partition, step: None
        """What a worker replies instead of its page, if anything."""

    def client(self) -> ClientReads:
        exchange = PartitionedExchange("http://a:1", 10_000, lambda: self.now_s)
        exchange.workers.on_refresh()
        exchange.workers.adopt(MAP, {})
        return ClientReads(exchange, {"s": SPEC})

    def run(self, plan: Plan[Page[Entry]]) -> Page[Entry]:
        reply: Any = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as stop:
                return stop.value
            reply = self._reply(step)

    def _reply(self, step: Any) -> Reply | None:
        match step:
            case Pause(seconds):
                self.now_s += seconds
                return None
            case Discard():
                self.discarded += 1
                return None
        if "/v1/metadata" in step.url:
            return httpx.ConnectError("the map is known")
        self.requested.append(step)
        partition = int(query_of(step)["partition"])
        return self.before(partition, step) or self.page(partition, step)

    def page(self, partition: int, step: Send, scan: Scan | None = None) -> httpx.Response:
        query = urlsplit(step.url).query
        parameters = parse_parameters(query.encode(), ENTRIES_PARAMETERS | {"partition"})
        scan = scan or make_scan(ENTRIES, SPEC, None, parameters)
        start, end = scan.start, scan.end
        if parameters.cursor is not None:
            start, end = scan.after(Cursor.decode(parameters.cursor, scan).last)
        keys = sorted((key for key in self._keys[partition] if start <= key < end), reverse=scan.reverse)
        more, keys = len(keys) > parameters.limit, keys[: parameters.limit]
        position = encode_position(Position(log_digest("sqlite:log"), {partition: 7}))
        source = {"partition": partition, "position": position, "role": "active", "host": str(HOSTS[partition])}
        items = [b'{"key":"%b","value":%d}' % (key[1:], partition) for key in keys]
        page = ScanPage(keys, items, more, {**source, "lag": self.lag.document()}, keys[-1] if keys else b"")
        headers = {"content-type": FRAMES_MEDIA_TYPE, SCAN_HEADER: scan.digest.hex()}
        return httpx.Response(200, content=page.encode(), headers=headers, request=httpx.Request("GET", step.url))


def query_of(step: Send) -> dict[str, str]:
    return {name: value for name, [value] in parse_qs(urlsplit(step.url).query).items()}


def entries(*, reverse: bool = False, allow_partial: bool = False, **options: Any) -> ListRequest[Entry]:
    return ListRequest(Entry, "s", ALL_KEYS, None, None, reverse, options, allow_partial)


def scan_of(reverse: bool) -> Scan:
    return make_scan(ENTRIES, SPEC, None, ReadParameters(reverse=reverse))


def names(page: Page[Entry]) -> str:
    return "".join(entry.key for entry in page.items)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Partitions of which each has every other letter."""
    made = Cluster("acegik", "bdfhjl")
    for module in ("scattered_page", "worker_read"):
        monkeypatch.setattr(f"forebay_client.{module}.boot_ms", lambda: made.now_s * 1000)
    return made


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_follow_one_another_in_stored_order(cluster: Cluster, reverse: bool) -> None:
    """Each begins after the one before, at the position that was read."""
    client, cursor, found = cluster.client(), None, []
    for _ in range(3):
        page = cluster.run(client.page(entries(reverse=reverse), cursor, 4))
        found.append(names(page))
        cursor = page.cursor
    ordered = "lkjihgfedcba" if reverse else "abcdefghijkl"
    assert found == [ordered[:4], ordered[4:8], ordered[8:]]
    assert cursor is None
    assert [urlsplit(step.url).netloc for step in cluster.requested] == ["a:1", "b:1"] * 3
    scan = make_scan(
        ENTRIES, SPEC, None, parse_parameters(b"reverse=true" if reverse else b"", ENTRIES_PARAMETERS)
    )
    second = Cursor.decode(query_of(cluster.requested[2])["cursor"], scan)
    assert (second.last, second.at) == (
        b"\x01" + ordered[3].encode(),
        encode_position(Position(log_digest("sqlite:log"), {0: 7, 1: 7})),
    )


def test_a_cursor_of_another_list_is_refused(cluster: Cluster) -> None:
    client = cluster.client()
    cursor = cluster.run(client.page(entries(), None, 4)).cursor
    with pytest.raises(BadParameter, match="another query"):
        cluster.run(client.page(entries(reverse=True), cursor, 4))


def test_a_page_of_another_list_is_not_used(cluster: Cluster) -> None:
    other, mixed_up = scan_of(reverse=True), [1]

    def before(partition: int, step: Send) -> Reply | None:
        return cluster.page(partition, step, other) if partition in mixed_up and mixed_up.pop() else None

    cluster.before = before
    assert names(cluster.run(cluster.client().page(entries(), None, 100))) == "abcdefghijkl"
    assert cluster.discarded == 1


def test_a_part_that_left_its_bounds_meanwhile_is_read_again(cluster: Cluster) -> None:
    slow = [1]

    def before(partition: int, step: Send) -> Reply | None:
        cluster.now_s += 0.05 if partition in slow and slow.pop() else 0
        return None

    cluster.before = before
    page = cluster.run(cluster.client().page(entries(max_time_lag_ms=20), None, 100))
    assert names(page) == "abcdefghijkl"
    assert page.lag == Lag(0, 0, None)
    assert [query_of(step)["partition"] for step in cluster.requested] == ["0", "1", "0"]


def test_a_page_states_and_keeps_its_bounds_as_of_its_end(cluster: Cluster) -> None:
    def before(partition: int, step: Send) -> None:
        cluster.now_s += 0.05

    cluster.before = before
    assert cluster.run(cluster.client().page(entries(), None, 100)).lag == Lag(0, 50, None)
    with pytest.raises(LagExceedsTolerance) as refused:
        cluster.run(cluster.client().page(entries(max_time_lag_ms=20), None, 100))
    assert refused.value.lag == Lag(0, 50, None)


def test_a_partition_without_a_worker_is_missing_in_all_pages(cluster: Cluster) -> None:
    """If a part is allowed. It leaves time for the others, also if it is asked first and hangs."""

    def before(partition: int, step: Send) -> Reply | None:
        if partition == 1:
            return None
        cluster.now_s += step.timeout.read or 0
        return httpx.ReadTimeout("no answer")

    cluster.before = before
    client = cluster.client()
    page = cluster.run(client.page(entries(allow_partial=True), None, 4))
    assert (names(page), page.missing, page.complete) == ("bdfh", (0,), False)
    cluster.requested.clear()
    page = cluster.run(client.page(entries(allow_partial=True), page.cursor, 4))
    assert (names(page), page.missing, page.complete) == ("jl", (0,), False)
    assert [query_of(step)["partition"] for step in cluster.requested] == ["1"]


@pytest.mark.parametrize("allow_partial", [False, True])
def test_a_list_of_nothing_says_what_was_tried(cluster: Cluster, allow_partial: bool) -> None:
    cluster.before = lambda partition, step: httpx.ConnectError("refused")
    with pytest.raises(NoReplica) as refused:
        cluster.run(cluster.client().page(entries(allow_partial=allow_partial), None, 4))
    attempts = refused.value.members["attempts"]
    assert {attempt["host"] for attempt in attempts} == ({"a:1", "b:1"} if allow_partial else {"a:1"})


def test_a_page_is_made_of_little_more_than_its_items() -> None:
    assert [share(1_000, partitions) for partitions in (1, 4, 64)] == [1_000, 298, 28]
    assert (share(1, 64), share(3, 0)) == (1, 3)
