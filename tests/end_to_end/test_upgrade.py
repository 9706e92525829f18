"""What earlier versions left on disk and sent to each other, opened by this one."""

import base64
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.position import decode_position
from forebay.streams_metadata import Generation, StreamsMetadataState
from forebay.task_ids import TopicPartition
from forebay.wire.batches import read_batch_frames
from forebay.wire.documents import cluster_map_of
from forebay.wire.list_routes import SCAN_ROUTES
from forebay.wire.parameters import ReadParameters
from forebay.wire.scan_pages import ScanPage
from forebay.wire.scans import Cursor, make_scan
from forebay_changelog import Heartbeat
from forebay_router.cluster.discovery import read_status
from forebay_router.cluster.worker_view import WorkerView
from forebay_router.upstream.replica_headers import reported_in
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo
from forebay_worker.state.checkpoint_file import CheckpointFile
from tests.fixtures.content import IN_LOG_ALONE, READS, T0_MS, TOPOLOGY
from tests.support.cluster import Cluster, running_cluster
from tests.support.installed import install_file_store

FIXTURES = Path(__file__).parent.parent / "fixtures"
VERSIONS = sorted(path.name for path in FIXTURES.glob("[0-9]*"))
STORES = {"views", "hours", "visits", "prices", "numbers", "filed"}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def wire(version: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FIXTURES / version / "wire.json").read_text())
    return document


@pytest.fixture(scope="module")
def upgraded(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, str]]:
    """A worker on a copy of what the version left, and a router."""
    directory = tmp_path_factory.mktemp("upgraded")
    for what in ("state", "log", "group.db"):
        with tarfile.open(FIXTURES / version / f"{what}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
    (directory / "group.db").rename(directory / "log" / "group.db")
    packages = tmp_path_factory.mktemp("packages")
    install_file_store(packages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
        patch.syspath_prepend(packages)
        with running_cluster(directory, topology_text=TOPOLOGY) as cluster:
            worker = cluster.start_worker(None, "--num-standby-replicas", "0")
            router = cluster.start_router()
            cluster.wait_settled(router, replicas=1)
            yield cluster, worker, router


@pytest.mark.parametrize("tier", ["worker", "router"])
@pytest.mark.parametrize("path", READS)
def test_an_old_state_and_log_give_the_right_values(upgraded, path, tier):
    _, worker, router = upgraded
    answer = httpx.get(f"http://{worker if tier == 'worker' else router}/v1/stores/{path}")
    expected = READS[path]
    if isinstance(expected, int):
        assert answer.status_code == expected
        assert answer.json()["type"] == "urn:forebay:problem:unknown-key"
    else:
        assert answer.status_code == 200, answer.text
        assert {name: answer.json()[name] for name in expected} == expected
    assert answer.json()["lag"]["record_lag"] == 0


def test_an_old_state_is_continued_and_not_rebuilt(upgraded, version):
    cluster, worker, _ = upgraded
    metrics = httpx.get(f"http://{worker}/metrics").text.splitlines()
    applied = sum(float(line.split()[1]) for line in metrics if line.startswith("forebay_records_applied_total"))
    heartbeats = sum(spec.partitions for spec in cluster.topology.stores.values())
    assert applied == sum(len(rows) for batch in IN_LOG_ALONE for rows in batch.values()) + heartbeats
    assert not any(word in cluster.logs() for word in ("rebuilt", "set aside", "not usable", "Traceback"))
    state = cluster.directory / "state-0" / "fixture"
    with tarfile.open(FIXTURES / version / "state.tar.xz") as archive:
        identities = [member for member in archive.getmembers() if member.name.endswith("/IDENTITY")]
        assert len(identities) == 10
        for member in identities:
            content = archive.extractfile(member)
            assert content is not None
            assert (state.parent.parent / member.name).read_bytes() == content.read()
        process = archive.extractfile("state-0/fixture/process.json")
        assert process is not None
        before = json.load(process)
    after = json.loads((state / "process.json").read_text())
    assert after["process_id"] == before["process_id"]
    assert after["incarnation"] > before["incarnation"]


def test_an_old_groups_generation_is_continued(upgraded, wire):
    cluster, worker, _ = upgraded
    metadata = cluster.get(worker, "/v1/metadata")
    before = wire["metadata"]
    assert metadata["incarnation"] == before["incarnation"]
    assert metadata["generation"] > before["generation"]


def test_old_positions_and_cursors_are_still_good(upgraded, wire):
    cluster, worker, router = upgraded
    for address in (worker, router):
        key = cluster.get(address, f"/v1/stores/views/keys/page-00?min_position={wire['position']}")
        assert key["value"] == {"views": 100}
        rest = cluster.get(address, f"/v1/stores/views/entries?cursor={wire['cursor']}")
        names = [entry["key"] for entry in rest["entries"]]
        whole = cluster.get(address, "/v1/stores/views/entries")["entries"]
        # The first page went to page-07.
        assert names == [entry["key"] for entry in whole if entry["key"] > "page-07"]


def test_an_old_event_id_resumes_a_stream_of_changes(upgraded, wire):
    _, _, router = upgraded
    event_id = wire["event"].partition("id: ")[2].partition("\n")[0]
    path = f"http://{router}/v1/stores/views/keys/page-21/changes"
    with httpx.stream("GET", path, headers={"last-event-id": event_id}) as stream:
        event = next(text for text in stream.iter_text() if "event: value" in text)
    assert '"value":{"views":321}' in event


def test_an_old_group_message_is_understood(wire):
    hosts = {row["host"] for row in wire["metadata"]["hosts"]}
    subscriptions = {
        name: SubscriptionInfo.decode(base64.b64decode(raw)) for name, raw in wire["subscriptions"].items()
    }
    assert {str(found.host) for found in subscriptions.values()} == hosts
    assert {found.process_id for found in subscriptions.values()} == subscriptions.keys()
    assert all(len(found.offsets) == 4 for found in subscriptions.values())
    info = AssignmentInfo.decode(base64.b64decode(wire["assignment"]))
    assert info.generation == Generation(wire["metadata"]["incarnation"], wire["metadata"]["generation"])
    assert info.ordinals == {"views": 0, **dict.fromkeys(STORES - {"views"}, 1)}
    assert set(map(str, info.hosts.values())) == hosts
    for member in subscriptions:
        active, standby = info.tasks_of(member)
        assert (len(active), len(standby)) == (2, 2)


def test_an_old_workers_status_and_metadata_are_read(wire):
    known = cluster_map_of(wire["metadata"])
    assert {store for host in known.hosts for store in host.active_store_names} == STORES
    assert StreamsMetadataState({}, known).all_metadata() == known.hosts
    view = WorkerView(known.hosts[0].host)
    body = json.dumps(wire["status"]).encode()
    view.take(body, read_status(body)[1], 1_000.0)
    assert view.generation == known.generation
    assert view.incarnation == wire["status"]["incarnation"]
    assert {store for store, _ in view.replicas} == STORES
    assert {report.role for report in view.replicas.values()} == {"active", "standby"}
    assert all(report.lag.record_lag == 0 for report in view.replicas.values())


def test_old_frames_and_header_lines_are_read(wire, tmp_path):
    page = ScanPage.decode(base64.b64decode(wire["list_frames"]))
    assert page.keys == [b"\x01page-02", b"\x01page-04", b"\x01page-05"]
    assert page.items[0] == b'{"key":"page-02","value":{"views":102}}'
    assert (page.more, page.last) == (True, b"\x01page-05")
    assert page.source["partition"] == 0
    statuses, bodies = read_batch_frames(base64.b64decode(wire["batch_frames"]), 3)
    assert statuses == [200, 404, 200]
    assert [json.loads(body).get("value") for body in bodies] == [{"views": 100}, None, {"views": 211}]
    for name in ("list_frames_head", "key_head"):
        reported = reported_in("".join(f"{line}\r\n" for line in wire[name]).encode())
        assert reported is not None
        assert reported.lag.record_lag == 0
        assert reported.lag.age_ms is not None
        assert reported.role in ("active", "standby")


def test_an_old_cursor_position_and_heartbeat_are_parsed(wire, tmp_path):
    with running_cluster(tmp_path, topology_text=TOPOLOGY.replace('supplier = "file"', "")) as cluster:
        spec = cluster.topology.stores["views"]
    route = next(route for route in SCAN_ROUTES if route.items == "entries")
    cursor = Cursor.decode(wire["cursor"], make_scan(route, spec, None, ReadParameters()))
    assert (cursor.last, cursor.missing) == (b"\x01page-07", ())
    assert cursor.position is not None
    assert cursor.position.offsets == {0: 18, 1: 23}
    assert decode_position(wire["position"]).offsets == {1: 23}
    assert Heartbeat.parse(wire["heartbeat"].encode()) == Heartbeat(T0_MS, "q", 7)


def test_an_old_checkpoint_is_continued_at_close(upgraded):
    """Last, for it stops the worker."""
    cluster, worker, _ = upgraded
    tp = TopicPartition(cluster.topology.stores["filed"].topic, 1)
    cluster.kill(worker, signal.SIGTERM)
    checkpoint = CheckpointFile.of(cluster.directory / "state-0" / "fixture" / "1_1").read()
    assert checkpoint == cluster.changelog.end_offsets([tp])
