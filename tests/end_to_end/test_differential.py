"""Random writes and random queries through client, router and workers, against a model of plain dictionaries.

A worker is killed midway. The examples are the same in every run.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forebay.client import Answer, Client
from forebay.errors import HistoryExpired, UnknownKey
from forebay.position import Position, encode_position, log_digest
from forebay.store_spec import StoreSpec
from tests.support.cluster import Cluster, running_cluster
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.chaos

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "all"
partitions = 3

[[subtopology.store]]
name = "names"

[[subtopology.store]]
name = "numbers"
key = "int32"

[[subtopology.store]]
name = "anywhere"
partitioner = "unknown"

[[subtopology.store]]
name = "orders"
external = true
value = "avro"

[[subtopology.store]]
name = "customers"
external = true
key = "avro"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000000

[[subtopology.store]]
name = "visits"
kind = "session"
gap_ms = 1000
retention_ms = 1000000000

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000

[[subtopology.store]]
name = "recent"
kind = "versioned"
history_retention_ms = 2000
"""
VERSIONED = ["prices", "recent"]
EXAMPLES = 80
LATEST = ["names", "numbers", "anywhere", "orders", "customers"]
STORES = [*LATEST, "hours", "visits", "prices", "recent"]

WORDS = st.text("ab\x00é", max_size=3)
NAMED = st.text("ab\x00é", min_size=1, max_size=2)
"""Keys that a path can name."""
NUMBERS = st.integers(-5, 5) | st.sampled_from([-(2**31), 2**31 - 1])
VALUES = st.none() | st.integers(0, 99)
TIMES = st.integers(0, 6).map(lambda i: 1000 * i)
MOMENTS = st.none() | st.integers(-3, 17).map(lambda i: 500 * i)
"""Bounds, that often fall on what they bound."""
ROWS = {
    "names": st.dictionaries(WORDS, VALUES, max_size=8),
    "numbers": st.dictionaries(NUMBERS, VALUES, max_size=8),
    "anywhere": st.dictionaries(WORDS, VALUES, max_size=8),
    "orders": st.dictionaries(WORDS, VALUES, max_size=8),
    "customers": st.dictionaries(WORDS, VALUES, max_size=8),
    "hours": st.dictionaries(st.tuples(NAMED, TIMES), VALUES, max_size=12),
    "visits": st.dictionaries(
        st.tuples(NAMED, TIMES, st.integers(0, 5)).map(lambda k: (k[0], k[1], k[1] + 500 * k[2])),
        VALUES,
        max_size=8,
    ),
    "prices": st.dictionaries(st.tuples(NAMED, TIMES), VALUES, max_size=8),
    "recent": st.dictionaries(st.tuples(NAMED, TIMES), VALUES, max_size=8),
}
"""By store, what one batch writes; None deletes."""
LISTING = st.fixed_dictionaries(
    {"reverse": st.booleans(), "limit": st.none() | st.integers(1, 6), "page_size": st.integers(1, 9)}
)


@dataclass
class Service:
    """The service with everything that was written to it."""

    cluster: Cluster
    client: Client
    serialize: Callable[[int], bytes]
    """Writes values of ``orders``."""
    serialize_key: Callable[[str], bytes]
    """Writes keys of ``customers``."""
    model: dict[str, dict[Any, int]] = field(default_factory=lambda: {store: {} for store in STORES})
    written_ms: dict[tuple[str, Any], int] = field(default_factory=dict)
    """The timestamp of what was last written, by store and key: the number of its batch, if it has no time."""
    history: dict[tuple[str, str], dict[int, int | None]] = field(default_factory=dict)
    """Versions by store and key, then by time."""
    positions: dict[str, str] = field(default_factory=dict)
    batches: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    examples: int = 0

    def write(self, store: str, rows: dict[Any, int | None]) -> None:
        spec = self.cluster.topology.stores[store]
        split: dict[int, list[Any]] = {}
        batch = next(self.batches)
        for key, value in rows.items():
            plain, suffix, at = split_key(spec, key, batch)
            if store == "customers":
                plain = self.serialize_key(key)
            self.written_ms[store, key] = at
            written = self.serialize if store == "orders" else b"%d".__mod__
            row = (plain + suffix, None if value is None else written(value), at)
            split.setdefault(place(spec, plain), []).append(row)
            self.note(store, key, value)
        ends = self.cluster.log.append(spec, split, store, batch)
        log = log_digest(self.cluster.changelog.identity(spec.topic))
        self.positions[store] = encode_position(Position(log, ends))

    def note(self, store: str, key: Any, value: int | None) -> None:
        if store in VERSIONED:
            self.history.setdefault((store, key[0]), {})[key[1]] = value
        elif value is None:
            self.model[store].pop(key, None)
        else:
            self.model[store][key] = value

    def as_of(self, store: str, key: str, at: int | None) -> int | str | None:
        versions = self.history.get((store, key), {})
        begins, kept = self.history_begins(store, key), self.kept(store, key)
        if at is not None and kept and at < kept[0] <= begins:
            # Nobody can tell any more whether there was an older one.
            return "expired"
        times = [time for time in versions if at is None or time <= at]
        return versions[max(times)] if times else None

    def history_begins(self, store: str, key: str) -> int:
        """Which time the oldest history that is kept of a key's partition is about."""
        spec = self.cluster.topology.stores[store]
        partition = place(spec, key.encode())
        newest = max(
            (
                time
                for (other, name), versions in self.history.items()
                if other == store and place(spec, name.encode()) == partition
                for time in versions
            ),
            default=0,
        )
        return newest - history_ms(spec)

    def kept(self, store: str, key: str) -> list[int]:
        """From when a key's versions are valid, but for those that another replaced before history begins."""
        times = sorted(self.history.get((store, key), {}))
        begins = self.history_begins(store, key)
        replaced = {time for time, following in itertools.pairwise(times) if following <= begins}
        return [time for time in times if time not in replaced]


def history_ms(spec: StoreSpec) -> int:
    assert spec.history_retention_ms is not None
    return spec.history_retention_ms


def split_key(spec: StoreSpec, key: Any, batch: int) -> tuple[bytes, bytes, int]:
    """The user key, the times after it in the changelog, and the record's time."""
    match spec.kind, key:
        case "window", (name, start):
            return name.encode(), time8(start), start
        case "session", (name, start, end):
            return name.encode(), time8(end) + time8(start), end
        case "versioned", (name, valid_from):
            return name.encode(), b"", valid_from
    return spec.key_codec.from_json(key), b"", batch


def time8(time_ms: int) -> bytes:
    return time_ms.to_bytes(8, "big")


def place(spec: StoreSpec, plain: bytes) -> int:
    """The partition of a key; where nobody else need know it, by the writer's own rule."""
    return sum(plain) % spec.partitions if spec.stream_partitioner is None else spec.partition_of(plain)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("differential")
    with SchemaRegistry() as registry, running_cluster(directory, topology_text=TOPOLOGY) as cluster:
        cluster.worker_options = ("--schema-registry", registry.url)
        values, keys = (
            AvroSerializer(SchemaRegistryClient({"url": registry.url}), schema) for schema in ('"int"', '"string"')
        )
        cluster.start_workers(3)
        router = cluster.start_router()
        cluster.wait_settled(router)
        with Client(f"http://{router}") as client:
            orders = SerializationContext("orders", MessageField.VALUE)
            customers = SerializationContext("customers", MessageField.KEY)
            service = Service(
                cluster, client, lambda value: values(value, orders), lambda key: keys(key, customers)
            )
            for store in STORES:
                service.write(store, {})
            yield service


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    # A smaller example would not find the stores as the failing one did.
    phases=[Phase.generate],
)
@given(data=st.data())
def test_whatever_the_request_the_answer_is_the_models(service, data):
    service.examples += 1
    if service.examples == EXAMPLES // 2:
        service.cluster.kill(next(iter(service.cluster.workers)))
    for store in data.draw(st.lists(st.sampled_from(STORES), min_size=1, max_size=3, unique=True), "written"):
        service.write(store, data.draw(ROWS[store], store))
    for query in data.draw(st.lists(st.sampled_from(QUERIES), min_size=2, max_size=5), "asked"):
        query(service, data)


def options(service: Service, data: st.DataObject, store: str) -> Any:
    """Read what was written, from any replica."""
    return {
        "min_position": service.positions[store],
        "wait_ms": 10_000,
        "timeout_ms": 20_000,
        "prefer": data.draw(st.sampled_from(["active", "any"])),
    }


def read_keys(service: Service, data: st.DataObject) -> None:
    store = data.draw(st.sampled_from(LATEST))
    keys = data.draw(st.lists(NUMBERS if store == "numbers" else WORDS, min_size=1, max_size=5))
    expected = [service.model[store].get(key) for key in keys]
    found = service.client.get_many(store, keys, **options(service, data, store))
    assert [none_if_missing(answer) for answer in found] == expected
    written_ms = {key: service.written_ms[store, key] for key in keys if service.model[store].get(key) is not None}
    assert {answer.key: answer.timestamp_ms for answer in found if isinstance(answer, Answer)} == written_ms
    assert get(service, store, keys[0], **options(service, data, store)) == expected[0]


def read_as_of(service: Service, data: st.DataObject) -> None:
    store, key, at = data.draw(st.sampled_from(VERSIONED)), data.draw(NAMED), data.draw(MOMENTS)
    assert get(service, store, key, as_of=at, **options(service, data, store)) == service.as_of(store, key, at)


def get(service: Service, store: str, key: Any, **more: Any) -> int | str | None:
    try:
        answer = service.client.get(store, key, **more)
        times_ms = service.history[store, key] if store in VERSIONED else [service.written_ms[store, key]]
        assert answer.timestamp_ms in times_ms
        return int(answer.value)
    except UnknownKey:
        return None
    except HistoryExpired:
        return "expired"


def none_if_missing(answer: Any) -> int | None:
    if isinstance(answer, UnknownKey):
        return None
    assert isinstance(answer, Answer), answer.document()
    return int(answer.value)


def list_entries(service: Service, data: st.DataObject) -> None:
    store = data.draw(st.sampled_from(LATEST))
    spec = service.cluster.topology.stores[store]
    keys = NUMBERS if store == "numbers" else WORDS
    start, end = data.draw(st.none() | keys), data.draw(st.none() | keys)
    # That of a key in JSON would begin with a quotation mark.
    prefix = None if store in ("numbers", "customers") else data.draw(st.none() | WORDS)
    listing = data.draw(LISTING)

    def ordered(key: Any) -> bytes:
        return spec.key_codec.ordered(spec.key_codec.from_json(key))

    start, end = in_order(start, end, ordered)
    expected = [
        (key, value, service.written_ms[store, key])
        for key, value in sorted(service.model[store].items(), key=lambda item: ordered(item[0]))
        if (start is None or ordered(key) >= ordered(start))
        and (end is None or ordered(key) < ordered(end))
        and (prefix is None or key.startswith(prefix))
    ]
    found = service.client.entries(
        store, start=start, end=end, prefix=prefix, **listing, **options(service, data, store)
    )
    assert [(item.key, item.value, item.timestamp_ms) for item in found] == cut(expected, listing)


def list_windows(service: Service, data: st.DataObject) -> None:
    start, end, listing, one = (
        data.draw(MOMENTS),
        data.draw(MOMENTS),
        data.draw(LISTING),
        data.draw(st.none() | NAMED),
    )
    start, end = in_order(start, end)
    expected = [
        (key, at, value, at)
        for (key, at), value in sorted(service.model["hours"].items(), key=lambda i: (i[0][0].encode(), i[0][1]))
        if (start is None or at >= start) and (end is None or at < end) and one in (None, key)
    ]
    found = service.client.windows(
        "hours", *([one] if one else []), start=start, end=end, **listing, **options(service, data, "hours")
    )
    assert [(item.key, item.start_ms, item.value, item.timestamp_ms) for item in found] == cut(expected, listing)


def list_sessions(service: Service, data: st.DataObject) -> None:
    start, end, listing, one = (
        data.draw(MOMENTS),
        data.draw(MOMENTS),
        data.draw(LISTING),
        data.draw(st.none() | NAMED),
    )
    start, end = in_order(start, end)
    expected = [
        (*key, value, key[2])
        for key, value in sorted(
            service.model["visits"].items(), key=lambda i: (i[0][0].encode(), i[0][2], i[0][1])
        )
        if (start is None or key[2] >= start) and (end is None or key[1] < end) and one in (None, key[0])
    ]
    found = service.client.sessions(
        "visits", *([one] if one else []), start=start, end=end, **listing, **options(service, data, "visits")
    )
    shown = [(item.key, item.start_ms, item.end_ms, item.value, item.timestamp_ms) for item in found]
    assert shown == cut(expected, listing)


def list_versions(service: Service, data: st.DataObject) -> None:
    store, key = data.draw(st.sampled_from(VERSIONED)), data.draw(NAMED)
    start, end, listing = data.draw(MOMENTS), data.draw(MOMENTS), data.draw(LISTING)
    start, end = in_order(start, end)
    history = service.history.get((store, key), {})
    times = service.kept(store, key)
    versions = [(at, history[at], at) for at in times]
    low = 0 if start is None else bisect.bisect_left(times, start)
    high = len(times) if end is None else bisect.bisect_left(times, end)
    found = service.client.versions(store, key, start=start, end=end, **listing, **options(service, data, store))
    shown = [(item.valid_from_ms, item.value, item.timestamp_ms) for item in found]
    assert shown == cut(versions[low:high], listing)


def in_order(start: Any, end: Any, order: Callable[[Any], Any] = lambda bound: bound) -> tuple[Any, Any]:
    """The bounds of a range: the other way round they are refused."""
    return (start, end) if None in (start, end) or order(start) <= order(end) else (end, start)


def cut(expected: Sequence[Any], listing: dict[str, Any]) -> list[Any]:
    return list(expected[::-1] if listing["reverse"] else expected)[: listing["limit"]]


QUERIES = [read_keys, read_as_of, list_entries, list_windows, list_sessions, list_versions]
