import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import BadKey, NotReady, UnknownPartitioner, UnknownStore
from forebay.partitioning import Murmur2Partitioner
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import (
    NO_GENERATION,
    ClusterMap,
    Generation,
    HostInfo,
    KeyQueryMetadata,
    StreamsMetadata,
    StreamsMetadataState,
    cluster_map,
)
from forebay.task_ids import TopicPartition
from forebay.wire.answer_schemas.stores import cluster_map_of, map_answer

repeatable = settings(derandomize=True, deadline=None, max_examples=100)

ONE, TWO, THREE = HostInfo("one", 8080), HostInfo("two", 8080), HostInfo("fe80::1", 9090)


def spec(name: str, topic: str, partitioner: str = "murmur2") -> StoreSpec:
    return StoreSpec(name, "key-value", "string", "json", partitioner, topic, partitions=4)


STORES = {
    store.name: store
    for store in (spec("delays", "delays-log"), spec("tails", "tails-log"), spec("any", "any-log", "unknown"))
}


def tps(topic: str, *partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, partition) for partition in partitions)


def assigned() -> StreamsMetadataState:
    """Delays: one has 0-2 active and two stands by for 0-1; nobody has 3. Tails: two only. Three: standby."""
    map_ = cluster_map(
        Generation(7, 1),
        STORES.values(),
        {ONE: tps("delays-log", 0, 1, 2), TWO: tps("tails-log", 0, 1, 2, 3)},
        {TWO: tps("delays-log", 0, 1), THREE: tps("delays-log", 1)},
        {},
    )
    state = StreamsMetadataState(STORES)
    assert state.on_change(map_)
    return state


def key_in(partition: int) -> str:
    partitioner = Murmur2Partitioner()
    return next(key for key in map(str, range(1000)) if partitioner.partition(key.encode(), 4) == partition)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("localhost:8080", HostInfo("localhost", 8080)),
        ("10.0.0.1:1", HostInfo("10.0.0.1", 1)),
        ("worker-0.workers.svc:65535", HostInfo("worker-0.workers.svc", 65535)),
        ("[::1]:8080", HostInfo("::1", 8080)),
        ("[fe80::1%eth0]:80", HostInfo("fe80::1%eth0", 80)),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, host: HostInfo) -> None:
    assert HostInfo.parse(text) == host
    assert str(host) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":80", "host:", "host:0", "host:65536", "host:-1", "host:http", "host:8 0", "[::1]", "host:80:"],
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT") as caught:
        HostInfo.parse(text)
    assert repr(text) in str(caught.value)


hosts = st.builds(
    HostInfo, st.sampled_from(["a", "b.example", "10.0.0.1", "::1", "fe80::2"]), st.integers(1, 65535)
)
partitions = st.frozensets(st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 5)), max_size=5)
names = st.frozensets(st.sampled_from(["x", "y", "z"]))
maps = st.builds(
    ClusterMap,
    st.builds(Generation, st.integers(0, 2**63), st.integers(0, 1000)),
    st.lists(st.builds(StreamsMetadata, hosts, partitions, partitions, names, names, names), max_size=4).map(
        tuple
    ),
)


@repeatable
@given(maps)
def test_a_map_survives_the_wire(map_: ClusterMap) -> None:
    answer = map_answer("app", "f", StreamsMetadataState({}, map_))
    assert cluster_map_of(json.loads(msgspec.json.encode(answer))) == map_


def test_an_answer_depends_on_no_order_of_partitions() -> None:
    one = StreamsMetadata(ONE, tps("t", 3, 1, 2), frozenset(), frozenset({"b", "a"}))
    [host] = map_answer("app", "f", StreamsMetadataState({}, ClusterMap(Generation(1, 1), (one,)))).hosts
    assert host.active_topic_partitions == [("t", 1), ("t", 2), ("t", 3)]
    assert host.active_store_names == ["a", "b"]


def test_a_map_names_each_hosts_stores_from_its_partitions() -> None:
    by_host = {metadata.host: metadata for metadata in assigned().all_metadata()}
    assert by_host.keys() == {ONE, TWO, THREE}
    assert by_host[ONE].active_store_names == {"delays"}
    assert by_host[ONE].standby_state_store_names == frozenset()
    assert by_host[TWO].active_store_names == {"tails"}
    assert by_host[TWO].standby_state_store_names == {"delays"}
    assert by_host[TWO].standby_topic_partitions == tps("delays-log", 0, 1)


def test_a_map_says_who_holds_each_topic_partition() -> None:
    held = assigned().map.by_topic_partition
    assert held[TopicPartition("delays-log", 0)] == (ONE, (TWO,))
    assert held[TopicPartition("delays-log", 1)] == (ONE, (THREE, TWO))
    assert held[TopicPartition("tails-log", 3)] == (TWO, ())
    assert TopicPartition("delays-log", 3) not in held


def test_a_partition_that_only_a_standby_holds_has_no_active() -> None:
    map_ = cluster_map(Generation(1, 1), STORES.values(), {}, {TWO: tps("delays-log", 0)}, {})
    assert map_.by_topic_partition == {TopicPartition("delays-log", 0): (None, (TWO,))}


def test_hosts_of_a_store_are_found_by_role() -> None:
    state = assigned()
    assert [host.host for host in state.all_metadata_for_store("delays")] == [ONE]
    assert [host.host for host in state.all_metadata_for_store("tails")] == [TWO]
    assert state.all_metadata_for_store("any") == ()
    assert [host.host for host in state.all_standby_metadata()] == [THREE, TWO]
    assert [host.host for host in state.all_standby_metadata_for_store("delays")] == [THREE, TWO]
    assert state.all_standby_metadata_for_store("tails") == ()


def test_key_leads_to_its_partition_active_and_standbys() -> None:
    state, key = assigned(), key_in(1)
    found = state.query_metadata_for_key("delays", key)
    assert found == KeyQueryMetadata(ONE, (THREE, TWO), 1)
    assert found == state.key_query_metadata("delays", key.encode())
    active = state.metadata_for_key("delays", key)
    assert active is not None
    assert active.host == ONE
    assert [host.host for host in state.standby_metadata_for_key("delays", key)] == [THREE, TWO]


class LastPartition:
    def partition(self, key: bytes, partitions: int) -> int:
        return partitions - 1


def test_custom_partitioner_gets_the_true_partition_count() -> None:
    state = assigned()
    assert state.query_metadata_for_key("tails", "k", LastPartition()) == KeyQueryMetadata(TWO, (), 3)
    assert state.query_metadata_for_key("any", "k", LastPartition()).partition == 3
    found = state.metadata_for_key("tails", "k", LastPartition())
    assert found is not None
    assert found.host == TWO


def test_a_key_of_another_type_is_a_bad_key() -> None:
    with pytest.raises(BadKey):
        assigned().query_metadata_for_key("delays", 5)


LOOKUPS = [
    lambda state, store: state.all_metadata_for_store(store),
    lambda state, store: state.all_standby_metadata_for_store(store),
    lambda state, store: state.metadata_for_key(store, key_in(3)),
    lambda state, store: state.standby_metadata_for_key(store, key_in(3)),
    lambda state, store: state.query_metadata_for_key(store, key_in(3)),
    lambda state, store: state.key_query_metadata(store, key_in(3).encode()),
]


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_store_outside_the_topology_is_unknown(lookup) -> None:  # type: ignore[no-untyped-def]
    """The problem is the same before the first assignment."""
    for state in (assigned(), StreamsMetadataState(STORES)):
        with pytest.raises(UnknownStore, match="'nonesuch'") as caught:
            lookup(state, "nonesuch")
        assert caught.value.members == {"store": "nonesuch"}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_lookup_before_the_first_assignment_is_not_ready(lookup) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotReady, match="No assignment") as caught:
        lookup(StreamsMetadataState(STORES), "delays")
    assert caught.value.retry_after_s


def test_before_the_first_map_nobody_is_named() -> None:
    state = StreamsMetadataState(STORES)
    assert state.map.generation == NO_GENERATION
    for lookup in (state.all_metadata, state.all_standby_metadata):
        with pytest.raises(NotReady):
            lookup()


def test_unheld_partition_has_no_hosts() -> None:
    """The lookup succeeds with an active host of null and no standbys."""
    state = assigned()
    assert state.query_metadata_for_key("delays", key_in(3)) == KeyQueryMetadata(None, (), 3)
    assert state.metadata_for_key("delays", key_in(3)) is None
    assert state.standby_metadata_for_key("delays", key_in(3)) == ()


def test_lookup_without_a_partitioner_is_refused() -> None:
    with pytest.raises(UnknownPartitioner, match="'unknown'"):
        assigned().query_metadata_for_key("any", "k")


@repeatable
@given(st.lists(st.builds(Generation, st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=8))
def test_an_older_map_never_replaces_a_newer(generations: list[Generation]) -> None:
    state = StreamsMetadataState(STORES)
    newest = NO_GENERATION
    for generation in generations:
        taken = state.on_change(ClusterMap(generation))
        assert taken == (generation >= newest)
        newest = max(newest, generation)
        assert state.map.generation == newest


def test_a_new_incarnation_beats_any_generation_of_the_old() -> None:
    state = assigned()
    assert not state.on_change(ClusterMap(Generation(6, 1000)))
    assert state.on_change(ClusterMap(Generation(8, 0)))
