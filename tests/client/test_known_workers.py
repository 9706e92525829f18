"""What a partition-aware client concludes from the map and from answers, by a clock that only the test moves."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import httpx
import msgspec
import pytest

from forebay.errors import LagExceedsTolerance, NoReplica
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import ClusterMap, Generation, HostInfo, StreamsMetadata, StreamsMetadataState
from forebay.task_ids import TopicPartition
from forebay.wire.documents import map_answer
from forebay_client.exchange import Pause, Plan, Request, Send
from forebay_client.known_workers import KnownWorkers
from forebay_client.partitioned_exchange import PartitionedExchange
from forebay_client.read_plans import ClientReads
from forebay_client.results import Answer
from forebay_client.target_partition import TargetPartition

T = TypeVar("T")
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
A, B, C = (HostInfo(name, 1) for name in "abc")
HELD = frozenset({TopicPartition("t", 0)})


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def map_of(number: int, active: HostInfo, *standbys: HostInfo) -> ClusterMap:
    hosts = [StreamsMetadata(active, active_topic_partitions=HELD, process_ids=frozenset({active.host}))]
    hosts += [
        StreamsMetadata(host, standby_topic_partitions=HELD, process_ids=frozenset({host.host}))
        for host in standbys
    ]
    return ClusterMap(Generation(1, number), tuple(hosts))


def answer(host: HostInfo, role: str, record_lag: int = 0) -> dict[str, Any]:
    lag = {"record_lag": record_lag, "time_lag_ms": 0, "age_ms": None}
    named = {"store": "s", "key": "k", "value": 1, "position": "p", "partition": 0}
    return {**named, "role": role, "host": str(host), "lag": lag}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers(clock: Clock) -> KnownWorkers:
    known = KnownWorkers(["https://a:1"], clock)
    known.on_refresh()
    known.adopt(map_of(1, A, B), {})
    return known


def test_active_is_first_unless_known_to_exceed_the_bound(workers, clock):
    bound = {"max_record_lag": 10}
    assert workers.candidates(SPEC, 0, {}) == workers.candidates(SPEC, 0, bound) == (A, B)
    workers.on_answer(A, SPEC, [answer(A, "active", 50)])
    assert workers.candidates(SPEC, 0, {}) == (A, B)
    assert workers.candidates(SPEC, 0, bound) == (B, A)
    clock.now += 6
    assert workers.candidates(SPEC, 0, bound) == (A, B)


def test_any_is_one_that_is_not_known_to_be_beyond_the_bound(workers):
    spread = {"prefer": "any", "max_time_lag_ms": 100}
    assert {workers.candidates(SPEC, 0, spread)[0] for _ in range(50)} == {A, B}
    workers.on_answer(B, SPEC, [{**answer(B, "standby"), "lag": {"record_lag": 0, "time_lag_ms": 500}}])
    assert {workers.candidates(SPEC, 0, spread)[0] for _ in range(50)} == {A}
    assert workers.candidates(SPEC, 0, {**spread, "require_active": True}) == (A, B)


def test_unreachable_worker_is_last_with_backoff(workers, clock):
    """One read tries it after 1 to 30 seconds, until it answers or a newer map names it."""
    tried_after = []
    for _ in range(7):
        # Reads that fail together count once.
        workers.on_unreachable(A)
        workers.on_unreachable(A)
        since = clock.now
        while workers.candidates(SPEC, 0, {}) == (B, A):
            clock.now += 0.5
        tried_after.append(clock.now - since)
        workers.on_request(A)
        assert workers.candidates(SPEC, 0, {}) == (B, A)
    assert tried_after == [1, 2, 4, 8, 16, 30, 30]
    workers.on_answer(A, SPEC, [answer(A, "active")])
    assert workers.candidates(SPEC, 0, {}) == (A, B)
    workers.on_unreachable(A)
    workers.adopt(map_of(2, A, B), {})
    assert workers.candidates(SPEC, 0, {}) == (A, B)


def test_an_older_map_is_not_taken(workers):
    workers.adopt(map_of(0, C), {})
    assert workers.candidates(SPEC, 0, {}) == (A, B)


def test_map_is_refreshed_when_old_or_contradicted(workers, clock):
    assert not workers.is_due
    clock.now += 10
    assert workers.is_due
    workers.on_refresh()
    workers.on_answer(A, SPEC, [answer(A, "standby")])
    assert not workers.is_due
    clock.now += 1
    assert workers.is_due
    workers.on_refresh()
    workers.on_answer(B, SPEC, [answer(B, "standby")])
    workers.on_answer(A, SPEC, [answer(A, "active")])
    clock.now += 1
    assert not workers.is_due


def test_worker_is_reached_by_address_or_local_socket(clock):
    """With `prefer=any` the worker behind this machine's socket is first."""
    known = KnownWorkers(["unix:/run/b.sock", "https://a:1"], clock)
    known.adopt(map_of(1, A, B), {"b": "unix:/run/b.sock"})
    assert [known.url(host) for host in (A, B)] == ["https://a:1", "unix:/run/b.sock"]
    assert known.candidates(SPEC, 0, {"prefer": "any"}) == (B, A)


Reply = tuple[int, Mapping[str, Any]]
REFUSED: Reply = (0, {})
"""The connection, not the read."""


def refusal(name: str, status: int, **members: Any) -> Reply:
    head = {"type": f"urn:forebay:problem:{name}", "status": status, "detail": name, "store": "s"}
    return status, {**head, **members}


NOT_HERE = refusal("not-hosted-here", 421, partition=0)


def read(clock: Clock, *script: tuple[str, Reply], **parameters: Any) -> dict[str, Any]:
    """A read through servers that follow a script: which URL is asked, and what it replies."""
    exchange = PartitionedExchange("http://seed:1", 5_000, clock)
    target = TargetPartition(exchange.workers, SPEC, 0)
    request = Request("/read", parameters, lambda _: None, target=target)
    return dict(followed(exchange.ask(request, exchange.deadline(1_000)), clock, *script))


def followed(plan: Plan[T], clock: Clock, *script: tuple[str, Reply]) -> T:
    """The result of a plan whose servers follow a script to its end."""
    steps, reply = iter(script), None
    while True:
        try:
            step = plan.send(reply)
        except StopIteration as stop:
            assert next(steps, None) is None
            result: T = stop.value
            return result
        if isinstance(step, Pause):
            clock.now += step.seconds
            reply = None
            continue
        assert isinstance(step, Send)
        url, (status, document) = next(steps)
        assert step.url.startswith(url)
        assert ("wait_ms" in step.url) == ("wait_ms" in url)
        request = httpx.Request("GET", step.url)
        body = json.dumps(document)
        reply = httpx.Response(status, content=body, request=request) if status else httpx.ConnectError("refused")


def document_of(map_: ClusterMap) -> Any:
    return msgspec.to_builtins(map_answer("app", "f", StreamsMetadataState({}, map_)))


MAP_1 = ("http://seed:1/v1/metadata", (200, document_of(map_of(1, A, B))))


def test_stale_map_is_refreshed_and_the_read_retried(clock):
    newer = 200, document_of(map_of(2, C))
    script = [
        MAP_1,
        ("http://a:1/read", NOT_HERE),
        ("http://b:1/read", REFUSED),
        ("http://a:1/v1/metadata", newer),
        ("http://c:1/read", (200, answer(C, "active"))),
    ]
    assert read(clock, *script)["host"] == "c:1"


def test_address_of_another_worker_is_not_trusted(clock):
    script = [
        MAP_1,
        ("http://a:1/read", (200, answer(C, "active"))),
        ("http://b:1/read", (200, answer(B, "standby"))),
    ]
    assert read(clock, *script)["host"] == "b:1"


def test_least_lagging_replica_explains_the_rejection(clock):
    far = refusal("lag-exceeds-tolerance", 412, **answer(A, "active", 9))
    near = refusal("lag-exceeds-tolerance", 412, **answer(B, "standby", 5))
    with pytest.raises(LagExceedsTolerance) as refused:
        read(clock, MAP_1, ("http://a:1/read", far), ("http://b:1/read", near), max_record_lag=1)
    assert refused.value.lag is not None
    assert refused.value.lag.record_lag == 5
    assert [attempt["host"] for attempt in refused.value.members["attempts"]] == ["a:1", "b:1"]


def test_wait_ms_is_sent_once_no_replica_can_answer(clock):
    """Replicas wait for a bound only once none can answer at once."""
    script = [
        MAP_1,
        ("http://a:1/read", refusal("lag-exceeds-tolerance", 412, **answer(A, "active", 9))),
        ("http://b:1/read", refusal("not-ready", 503)),
        ("http://a:1/read?max_record_lag=1&wait_ms=500", (200, answer(A, "active"))),
    ]
    assert read(clock, *script, max_record_lag=1, wait_ms=500)["host"] == "a:1"


def test_without_any_worker_the_read_ends_in_time(clock):
    begun = clock.now
    down = [("http://a:1/read", REFUSED), ("http://b:1/read", REFUSED)]
    no_newer_map = [("http://seed:1/v1/metadata", REFUSED)] * 2
    with pytest.raises(NoReplica, match="partition 0 of 's', the last: ConnectError"):
        read(clock, MAP_1, *down, *[*no_newer_map, *down] * 3)
    assert clock.now - begun == 0.75


def test_batch_keys_are_retried_on_other_replicas(clock):
    """The partitions of a dead worker's batch have their standbys on different workers."""
    spec = replace(SPEC, partitions=2)
    keys = {spec.partition_of(key.encode()): key for key in ("k0", "k1", "k2", "k3")}
    zero, one = (frozenset({TopicPartition("t", partition)}) for partition in (0, 1))
    hosts = (
        StreamsMetadata(A, active_topic_partitions=zero | one),
        StreamsMetadata(B, standby_topic_partitions=zero),
        StreamsMetadata(C, standby_topic_partitions=one),
    )
    exchange = PartitionedExchange("http://seed:1", 5_000, clock)
    reads = ClientReads(exchange, {"s": spec})

    def of(host: HostInfo, partition: int) -> dict[str, Any]:
        return {**answer(host, "standby"), "key": keys[partition], "partition": partition}

    elsewhere = {"key": keys[1], "problem": NOT_HERE[1] | {"partition": 1}}
    found = followed(
        reads.get_many("s", [keys[0], keys[1]], None, {}),
        clock,
        ("http://seed:1/v1/metadata", (200, document_of(ClusterMap(Generation(1, 1), hosts)))),
        ("http://a:1/v1/stores/s/batch-get", REFUSED),
        ("http://b:1/v1/stores/s/batch-get", (200, {"results": [of(B, 0), elsewhere]})),
        ("http://c:1/v1/stores/s/batch-get", (200, {"results": [of(C, 1)]})),
    )
    answers = [one for one in found if isinstance(one, Answer)]
    assert [(one.key, one.host) for one in answers] == [(keys[0], "b:1"), (keys[1], "c:1")]
