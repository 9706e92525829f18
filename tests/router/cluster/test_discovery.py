"""A router finds the workers of its application, and keeps up with them."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from forebay.clock import boot_ms
from forebay.lag import Lag
from forebay.networks import Networks
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import ClusterMap, Generation, HostInfo, StreamsMetadata, StreamsMetadataState
from forebay.task_ids import TopicPartition
from forebay.wire.answer_schemas.status import Identity, RejectedAddress
from forebay.wire.answer_schemas.stores import map_answer
from forebay.wire.answers import ReplicaInfo, replica_info_head
from forebay_router.cluster.cluster import Cluster
from forebay_router.cluster.discovery import Discovery
from forebay_router.cluster.seeds import Seeds
from forebay_router.cluster.worker_view import WorkerView
from forebay_router.upstream.opener import Opener, unencrypted
from forebay_router.upstream.pool import ConnectionPool
from tests.support.cluster import free_port, until
from tests.support.scripted_worker import answer

SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 2)
HOST = HostInfo("h", 1)
TOKEN = b"authorization: Bearer secret\r\n"


def discovering(
    seeds: Seeds | Sequence[HostInfo],
    application_id: str | None = None,
    on_forgotten: Any = None,
    networks: Networks | None = None,
) -> tuple[Cluster, Discovery]:
    known = Cluster(1_000, application_id)
    seeds = seeds if isinstance(seeds, Seeds) else Seeds(seeds)
    opener = Opener(unencrypted, networks, lambda address, answer: discovery.admit(address, answer))
    discovery = Discovery(known, seeds, 20, lambda: TOKEN, on_forgotten, opener)
    return known, discovery


def test_router_without_stores_is_not_ready():
    """It knows a worker already."""
    view = WorkerView(HOST, live=True, seen_boot_ms=boot_ms())
    known, discovery = discovering([HOST])
    known.workers[HOST] = view
    known.on_answer_headers(
        HOST, ("s", 0), replica_info_head(ReplicaInfo(1, "p", "active", str(HOST), Lag(0, 0, 0)))
    )
    assert not discovery.ready
    known.metadata.stores = {"s": SPEC}
    assert discovery.ready


@asynccontextmanager
async def worker(
    status: dict[str, Any],
    *,
    mapped: bool,
    received: list[bytes] | None = None,
    others: Sequence[StreamsMetadata] = (),
) -> AsyncIterator[HostInfo]:
    """A worker that says this of itself, its map has it and others or nobody; as long as it says nothing, it is
    silent. ``received`` gets the requests' heads."""

    # A loop refers to its tasks weakly: a silent one would be collected, and end with a warning.
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if received is not None:
                    received.append(head)
                if not status:
                    await asyncio.Event().wait()
                status["sequence"] = int(str(status["sequence"])) + 1
                documents: dict[bytes, object] = {
                    b"/v1/identity": identity_of(status),
                    b"/v1/status": status,
                    b"/v1/stores": {"stores": [SPEC.document()], "topology": "f"},
                    b"/v1/metadata": map_document(known(status), (active, *others) if mapped else ()),
                }
                body = json.dumps(documents[head.split()[1]]).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host = HostInfo("127.0.0.1", server.sockets[0].getsockname()[1])
    active = StreamsMetadata(host, active_topic_partitions=frozenset({TopicPartition("t", 0)}))
    row = {"store": "s", "partition": 0, "role": "active", "record_lag": 0, "time_lag_ms": 0, "age_ms": 0}
    generation = {"incarnation": 1, "generation": 1}
    status |= {"tier": "worker", "application_id": "a", "host": str(host), "incarnation": 1, "sequence": 0}
    status |= {"acceptable_recovery_lag": 10_000, "num_standby_replicas": 1}
    status |= {"process_id": "p", "generation": generation, "tasks": [row]}
    try:
        yield host
    finally:
        server.close()
        for task in filter(None, serving):
            task.cancel()


def identity_of(status: dict[str, Any]) -> dict[str, Any]:
    """That of a worker with this status."""
    members = {name: status[name] for name in Identity.__struct_fields__}
    return members | status.get("identity", {})


def map_document(generation: Generation, hosts: tuple[StreamsMetadata, ...]) -> Any:
    return msgspec.to_builtins(map_answer("a", "f", StreamsMetadataState({}, ClusterMap(generation, hosts))))


def known(status: dict[str, Any]) -> Generation:
    """The generation of a worker's newest map."""
    return Generation(status["generation"]["incarnation"], status["generation"]["generation"])


async def test_address_of_another_application_gets_no_reads():
    """Reads go there again once a worker of this application is back."""
    status: dict[str, object] = {}
    async with worker(status, mapped=True) as host:
        known, discovery = discovering([host])
        await discovery.start()
        try:
            await until(lambda: known.holders(SPEC, 0, lambda _: 0))
            status |= {"application_id": "b", "incarnation": 2}
            await until(lambda: not known.holders(SPEC, 0, lambda _: 0))
            status |= {"application_id": "a", "incarnation": 3}
            await until(lambda: known.holders(SPEC, 0, lambda _: 0))
        finally:
            await discovery.stop()


async def test_vanished_worker_is_forgotten(monkeypatch):
    """A router without any worker is not ready, and connections to the address are closed."""
    monkeypatch.setattr("forebay_router.cluster.discovery._FORGET_AFTER_MS", 1_500.0)
    monkeypatch.setattr("forebay_router.cluster.discovery._UNHEARD_S", 0.5)
    status: dict[str, object] = {}
    async with worker(status, mapped=False) as host:
        seeds = Seeds([host])
        pool = ConnectionPool()
        known, discovery = discovering(seeds, on_forgotten=pool.forget)
        await discovery.start()
        try:
            await until(lambda: discovery.ready)
            connection = await pool[host].connection()
            status.clear()
            await until(lambda: not discovery.ready)
            assert host in known.workers
            seeds._addresses = frozenset()
            await until(lambda: host not in known.workers)
            assert connection.closed
            assert host not in pool
            await until(lambda: host not in discovery._pool)
        finally:
            await discovery.stop()


async def test_map_comes_from_a_workers_own_address():
    """Behind a seed's name there may be several workers, each with a map and stores of its own."""
    own: dict[str, object] = {}
    behind: dict[str, object] = {}
    received: list[bytes] = []
    async with worker(own, mapped=True) as host, worker(behind, mapped=True, received=received) as seed:
        behind["host"] = str(host)
        known, discovery = discovering([seed])
        await discovery.start()
        try:
            await until(lambda: discovery.ready and known.metadata.stores)
            assert received
            assert not any(b"/v1/stores" in head or b"/v1/metadata" in head for head in received)
        finally:
            await discovery.stop()


async def test_seed_that_left_is_named_as_a_seed(monkeypatch):
    """It is polled on, and found again when a worker is back."""
    forget_after_ms = "forebay_router.cluster.discovery._FORGET_AFTER_MS"
    status: dict[str, object] = {}
    async with worker(status, mapped=False) as host:
        known, discovery = discovering([host])
        await discovery.start()
        try:
            await until(lambda: host in known.workers)
            before = dict(status)
            status.clear()
            with monkeypatch.context() as patch:
                patch.setattr(forget_after_ms, 300.0)
                await until(lambda: host not in known.workers and known.rejected_addresses.listed())
            assert [one.address for one in known.rejected_addresses.listed()] == [str(host)]
            status |= before
            await until(lambda: host in known.workers and not known.rejected_addresses.listed())
        finally:
            await discovery.stop()


async def test_router_serves_its_set_application(caplog):
    """A seed of another application is ignored and logged once, even if it answers first."""
    ours: dict[str, object] = {}
    theirs: dict[str, object] = {}
    async with worker(ours, mapped=True) as host, worker(theirs, mapped=True) as other:
        theirs["application_id"] = "b"
        known, discovery = discovering([other, host], application_id="a")
        await discovery.start()
        try:
            await until(lambda: discovery.ready and known.rejected_addresses.listed())
            said = "belongs to application 'b', this router serves 'a': it is ignored"
            assert known.rejected_addresses.listed() == [RejectedAddress(str(other), said)]
            assert known.workers.keys() == {host}
            polled = int(str(theirs["sequence"]))
            await until(lambda: int(str(theirs["sequence"])) > polled + 3)
            assert caplog.messages.count(f"{other} {said}") == 1
        finally:
            await discovery.stop()


async def test_seeds_of_two_applications_make_no_router_ready():
    ours: dict[str, object] = {}
    theirs: dict[str, object] = {}
    async with worker(ours, mapped=True) as host, worker(theirs, mapped=True) as other:
        theirs["application_id"] = "b"
        known, discovery = discovering([other, host])
        await discovery.start()
        try:
            await until(lambda: known.rejected_addresses.disagreement)
            assert "'a' and 'b': name the one with --application-id" in str(known.rejected_addresses.disagreement)
            assert (discovery.ready, known.application_id, known.workers) == (False, None, {})
            theirs["application_id"] = "a"
            await until(lambda: discovery.ready)
            assert known.application_id == "a"
        finally:
            await discovery.stop()


async def test_seeds_without_a_worker_are_logged_with_the_reason(caplog):
    status: dict[str, object] = {}
    async with worker(status, mapped=True) as router:
        status["tier"] = "router"
        nobody = HostInfo("127.0.0.1", free_port())
        known, discovery = discovering([router, nobody])
        await discovery.start()
        try:
            await until(lambda: len(known.rejected_addresses.listed()) == 2)
        finally:
            await discovery.stop()
        assert any(f"{router} is not a worker: name workers as --seeds" in message for message in caplog.messages)
        assert any(
            f"{nobody} does not answer like a worker: [Errno 111]" in message for message in caplog.messages
        )


async def test_restarted_worker_with_an_earlier_clock_is_live():
    """A new process id counts although its incarnation is lower."""
    status: dict[str, Any] = {}
    async with worker(status, mapped=True) as host:
        status |= {"process_id": "first", "incarnation": 2_000}
        known, discovery = discovering([host])
        await discovery.start()
        try:
            await until(lambda: discovery.ready)
            known.on_unreachable(host)
            status |= {"process_id": "second", "incarnation": 1_000, "sequence": 0}
            await until(lambda: known.is_healthy(host))
            assert known.workers[host].incarnation == 1_000
        finally:
            await discovery.stop()


async def test_group_restarted_at_a_lower_generation_is_followed(monkeypatch, caplog):
    """A worker that merely lags behind changes nothing."""
    monkeypatch.setattr("forebay_router.cluster.cluster._BEGAN_ANEW_AFTER_MS", 300.0)
    status, other = {}, {}
    async with worker(status, mapped=True) as host, worker(other, mapped=True) as second:
        status["generation"] = {"incarnation": 1, "generation": 10}
        known, discovery = discovering([host, second])
        await discovery.start()
        try:
            await until(lambda: known.metadata.map.generation == Generation(1, 10))
            # One that lags behind changes nothing, however long.
            polled = other["sequence"]
            await until(lambda: other["sequence"] > polled + 30)
            assert known.metadata.map.generation == Generation(1, 10)
            status["generation"] = {"incarnation": 1, "generation": 3}
            await until(lambda: known.metadata.map.generation == Generation(1, 3))
        finally:
            await discovery.stop()
    assert "their group began anew" in caplog.text


async def test_rejoining_workers_keep_the_map(monkeypatch):
    """A worker that has not joined yet reports no generation."""
    monkeypatch.setattr("forebay_router.cluster.cluster._BEGAN_ANEW_AFTER_MS", 100.0)
    status: dict[str, Any] = {}
    async with worker(status, mapped=True) as host:
        known, discovery = discovering([host])
        await discovery.start()
        try:
            await until(lambda: known.metadata.map.generation == Generation(1, 1))
            status["generation"] = {"incarnation": 0, "generation": 0}
            polled = status["sequence"]
            await until(lambda: status["sequence"] > polled + 20)
            assert known.metadata.map.generation == Generation(1, 1)
        finally:
            await discovery.stop()


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        ({"application_id": "b"}, "belongs to application 'b', this router serves 'a': it is ignored"),
        ({"tier": "router"}, "is not a worker: name workers as --seeds"),
        ({"process_id": "another"}, "is the process 'another', which the group does not know there"),
        (
            {"incarnation": "1"},
            "answers with something other than an identity: Expected `int`, got `str` - at `$.incarnation`",
        ),
        ({"process_id": "x" * 5_000}, "answers with something other than an identity: 5"),
        ({"process_id": "x" * 10_000}, "answers with more than an identity"),
    ],
)
async def test_address_of_an_unexpected_process_gets_no_token(identity, reason):
    """It gets no reads either until it is the process that the map names."""
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    received: list[bytes] = []
    async with worker(theirs, mapped=False, received=received) as other:
        theirs |= {"process_id": "known", "identity": identity}
        named = StreamsMetadata(other, frozenset({TopicPartition("t", 1)}), process_ids=frozenset({"known"}))
        async with worker(ours, mapped=True, others=[named]) as host:
            known, discovery = discovering([host])
            await discovery.start()
            try:
                await until(lambda: other in known.rejected_addresses.addresses)
                listed = known.rejected_addresses.listed()
                assert [rejected.address for rejected in listed] == [str(other)]
                assert listed[0].reason.startswith(reason)
                assert known.holders(SPEC, 1, lambda _: 0) == []
                requested = len(received)
                await until(lambda: len(received) > requested + 2)
                assert {head.split()[1] for head in received} == {b"/v1/identity"}
                assert not any(b"authorization" in head for head in received)
                theirs["identity"] = {}
                await until(lambda: known.is_healthy(other))
                assert known.rejected_addresses.listed() == []
                assert any(TOKEN in head for head in received)
            finally:
                await discovery.stop()


async def test_address_without_identity_may_be_an_older_worker():
    """The reason names the upgrade, and no token is sent."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer(b"{}", b"404 Not Found"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host = HostInfo("127.0.0.1", server.sockets[0].getsockname()[1])
    known, discovery = discovering([host])
    await discovery.start()
    try:
        await until(known.rejected_addresses.listed)
        assert "upgrade the workers first" in known.rejected_addresses.listed()[0].reason
        assert not any(b"authorization" in head for head in received)
    finally:
        await discovery.stop()
        server.close()


async def test_copy_from_before_the_last_start_is_rejected():
    """A process id with a lower incarnation is another process."""
    status: dict[str, Any] = {}
    async with worker(status, mapped=True) as host:
        status |= {"process_id": "p", "incarnation": 7}
        known, discovery = discovering([host])
        await discovery.start()
        try:
            await until(lambda: discovery.ready)
            view = known.workers[host]
            assert known.mismatch(host, Identity("worker", "a", "p", 7)) is None
            assert known.mismatch(host, Identity("worker", "a", "q", 6)) is None
            assert "from before its last start" in str(known.mismatch(host, Identity("worker", "a", "p", 6)))
            assert view.live
        finally:
            await discovery.stop()


async def test_sole_worker_is_accepted_despite_the_newest_map():
    """All of a group may have lost their state, and nobody else could give a newer map."""
    status: dict[str, Any] = {}
    async with worker(status, mapped=True) as host:
        known, discovery = discovering([host])
        known.metadata.map = ClusterMap(Generation(0, 1), (StreamsMetadata(host, process_ids=frozenset({"old"})),))
        await discovery.start()
        try:
            await until(lambda: known.is_healthy(host))
        finally:
            await discovery.stop()


@pytest.mark.parametrize("networks", [["127.0.0.0/8", "::1"], ["10.0.0.0/8", "localhost"]])
async def test_a_token_goes_to_listed_networks_and_names(networks):
    status: dict[str, Any] = {}
    async with worker(status, mapped=False) as host:
        named = HostInfo("localhost", host.port)
        status["host"] = str(named)
        seeds = Seeds([host])
        seeds._addresses = frozenset({named})
        known, discovery = discovering(seeds, networks=Networks("n", networks, names=True))
        await discovery.start()
        try:
            await until(lambda: known.is_healthy(named))
        finally:
            await discovery.stop()


async def test_address_outside_listed_networks_gets_nothing():
    status: dict[str, Any] = {}
    received: list[bytes] = []
    async with worker(status, mapped=True, received=received) as host:
        known, discovery = discovering([host], networks=Networks("n", ["10.0.0.0/8", "some.name"], names=True))
        await discovery.start()
        try:
            await until(known.rejected_addresses.listed)
            reason = known.rejected_addresses.listed()[0].reason
            assert "gets no token, since 127.0.0.1 is not in worker_token_networks" in reason
            assert received == []
        finally:
            await discovery.stop()
