import contextlib
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.streams_metadata import Generation, HostInfo
from forebay.task_ids import TaskId
from forebay.topology_file import parse_topology
from forebay_worker.group.assignor import Assignment, Placement
from forebay_worker.group.messages import (
    VERSION,
    AssignmentInfo,
    Location,
    SubscriptionInfo,
    UnreadableMessage,
    UnsupportedVersion,
)

TOPOLOGY = parse_topology(
    {
        "application_id": "app",
        "subtopology": [
            {"name": "counts", "partitions": 3, "store": [{"name": "counts"}]},
            {"name": "rest", "partitions": 2, "store": [{"name": "hours"}, {"name": "pairs"}]},
        ],
    }
)

names = st.text(min_size=1, max_size=12)
numbers = st.integers(0, 2**63 - 1)
generations = st.builds(Generation, numbers, numbers)
host_infos = st.builds(HostInfo, names, st.integers(1, 65535))
locations = st.builds(Location, st.none() | names, st.none() | names)
tasks = st.builds(TaskId, st.integers(0, 1_000), st.integers(0, 100_000))
subscriptions = st.builds(
    SubscriptionInfo,
    process_id=names,
    incarnation=numbers,
    host=host_infos,
    fingerprint=names,
    offsets=st.dictionaries(
        tasks, st.lists(st.integers(-3, 2**63 - 1), min_size=1, max_size=3).map(tuple), max_size=20
    ),
    known_generation=generations,
    unchecked=st.frozensets(tasks, max_size=5),
    restoring=st.dictionaries(tasks, st.tuples(numbers, numbers), max_size=5),
    returns=st.booleans(),
)


@st.composite
def assignments(draw: st.DrawFn) -> AssignmentInfo:
    """Placements of the topology's tasks; some members are meant to come back and have no address now."""
    everyone = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    present = everyone[: draw(st.integers(1, len(everyone)))]
    addresses = draw(st.lists(host_infos, min_size=len(present), max_size=len(present), unique=True))

    def placement(members: list[str]) -> Placement:
        chosen = draw(st.lists(st.sampled_from(members), min_size=1, unique=True))
        return Placement(chosen[0], tuple(chosen[1:]))

    placed = draw(st.sets(st.sampled_from(TOPOLOGY.tasks)))
    current = {task: placement(present) for task in placed}
    target = {task: current[task] if draw(st.booleans()) else placement(everyone) for task in placed}
    return AssignmentInfo(
        draw(generations),
        draw(names),
        dict(zip(present, addresses, strict=True)),
        Assignment(current, target),
        not_returning=frozenset(draw(st.sets(st.sampled_from(present)))),
        locations=draw(st.dictionaries(st.sampled_from(everyone), locations)),
    )


def changed(raw: bytes, **members: object) -> bytes:
    return packed({**msgspec.msgpack.decode(zlib.decompress(raw)), **members})


def packed(document: object) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(document))


AN_ASSIGNMENT = AssignmentInfo(
    Generation(7, 3),
    TOPOLOGY.fingerprint,
    {"a": HostInfo("one", 1), "b": HostInfo("two", 2)},
    Assignment(*[{task: Placement("a", ("b",)) for task in TOPOLOGY.tasks}] * 2),
)
A_SUBSCRIPTION = SubscriptionInfo("a", 5, HostInfo("one", 1), TOPOLOGY.fingerprint, {TaskId(0, 1): (9,)})
MESSAGES = pytest.mark.parametrize(
    ("message", "decode"),
    [(AN_ASSIGNMENT, AssignmentInfo.decode), (A_SUBSCRIPTION, SubscriptionInfo.decode)],
    ids=["AssignmentInfo", "SubscriptionInfo"],
)


@given(subscriptions)
def test_a_subscription_comes_back_as_it_was(subscription):
    assert SubscriptionInfo.decode(subscription.encode()) == subscription


@given(assignments())
def test_an_assignment_comes_back_as_it_was(info):
    assert AssignmentInfo.decode(info.encode()) == info


@MESSAGES
@given(data=st.data())
def test_damaged_messages_and_those_of_others_are_refused(
    message: Any, decode: Callable[[bytes], Any], data: st.DataObject
):
    raw = message.encode()
    document = msgspec.msgpack.decode(zlib.decompress(raw))
    without = {name: value for name, value in document.items() if name != data.draw(st.sampled_from([*document]))}
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    external = data.draw(
        st.binary()
        | st.sampled_from([zlib.compress(text) for text in (b"", b'{"v": 2, "least": 2}', b"\xff")])
        | st.sampled_from([packed(other) for other in (7, [], {})])
        | st.sampled_from([packed({**document, name: 7.5}) for name in document.keys() - {"v", "least"}])
    )
    for damaged in (cut, external):
        with pytest.raises(UnreadableMessage, match="is damaged, or no worker wrote it"):
            decode(damaged)
    with contextlib.suppress(UnreadableMessage):
        # Some members may be left out.
        decode(packed(without))


@given(assignments())
def test_the_same_assignment_has_the_same_bytes(info):
    backwards = AssignmentInfo(
        info.generation,
        info.fingerprint,
        dict(reversed(info.hosts.items())),
        Assignment(
            dict(reversed(info.assignment.current.items())), dict(reversed(info.assignment.target.items()))
        ),
        not_returning=frozenset(sorted(info.not_returning, reverse=True)),
        locations=dict(reversed(info.locations.items())),
    )
    assert backwards.encode() == info.encode()


@MESSAGES
def test_what_a_newer_writer_adds_is_ignored(message: Any, decode: Callable[[bytes], Any]):
    newer = changed(message.encode(), v=VERSION + 1, least=VERSION, flavour="r1", more={"deep": [1]})
    assert decode(newer) == message


@MESSAGES
def test_unsupported_version_is_refused_with_the_remedy(message: Any, decode: Callable[[bytes], Any]):
    beyond = changed(message.encode(), v=VERSION + 3, least=VERSION + 2)
    with pytest.raises(UnsupportedVersion) as refused:
        decode(beyond)
    assert str(refused.value) == (
        f"{type(message).__name__} of version {VERSION + 3} needs a reader of version {VERSION + 2}; this worker "
        f"reads version {VERSION}. Upgrade it."
    )


@MESSAGES
def test_unsupported_version_is_refused_with_any_content(message: Any, decode: Callable[[bytes], Any]):
    beyond = packed({"v": VERSION + 1, "least": VERSION + 1})
    with pytest.raises(UnsupportedVersion):
        decode(beyond)


@given(assignments())
def test_partitions_by_host_are_those_of_the_placements(info):
    actives = info.active_partitions_by_host(TOPOLOGY)
    standbys = info.standby_partitions_by_host(TOPOLOGY)
    assert actives.keys() == standbys.keys() == set(info.hosts.values())
    for member, host in info.hosts.items():
        active, standby = info.tasks_of(member)
        assert actives[host] == {tp for task in active for tp in TOPOLOGY.topic_partitions(task)}
        assert standbys[host] == {tp for task in standby for tp in TOPOLOGY.topic_partitions(task)}


@given(assignments())
def test_the_map_says_who_holds_each_topic_partition(info):
    cluster_map = info.map(TOPOLOGY)
    assert cluster_map.generation == info.generation
    assert [metadata.host for metadata in cluster_map.hosts] == sorted(info.hosts.values())
    assert cluster_map.by_topic_partition == {
        tp: (
            info.hosts[placement.active],
            tuple(sorted(info.hosts[member] for member in placement.standbys)),
        )
        for task, placement in info.assignment.current.items()
        for tp in TOPOLOGY.topic_partitions(task)
    }


@given(assignments())
def test_the_map_names_the_stores_of_each_host(info):
    store_by_topic = {spec.topic: spec.name for spec in TOPOLOGY.stores.values()}
    for metadata in info.map(TOPOLOGY).hosts:
        assert metadata.active_store_names == {store_by_topic[tp.topic] for tp in metadata.active_topic_partitions}
        assert metadata.standby_state_store_names == {
            store_by_topic[tp.topic] for tp in metadata.standby_topic_partitions
        }
