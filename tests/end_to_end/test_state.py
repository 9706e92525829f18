"""A worker and the state that it finds on its disk, or has to fetch from the log."""

import os
import re
import signal
from collections import Counter
from pathlib import Path

import httpx

from forebay_changelog.sqlite.compaction import CompactionLimits
from tests.support.cluster import TOPOLOGY, restore_processes, running_cluster, wait_until
from tests.support.commands import forebay


def test_state_moves_with_its_store_in_the_topology(cluster):
    """Reordered subtopologies need no rebuild."""
    cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(100)})
    worker = cluster.start_worker()
    state = cluster.directory / "state-0" / "test"
    before = {partition: inode(state / f"0_{partition}" / "rocksdb" / "counts") for partition in range(4)}
    cluster.kill(worker, signal.SIGTERM)
    head, counts, rest = TOPOLOGY.split("[[subtopology]]\n")
    cluster.topology_path.write_text(f"{head}[[subtopology]]\n{rest}[[subtopology]]\n{counts}")
    cluster.start_worker(worker)
    answer = httpx.get(f"http://{worker}/v1/stores/counts/keys/k7")
    assert (answer.status_code, answer.json()["value"]) == (200, 7)
    after = {partition: inode(state / f"1_{partition}" / "rocksdb" / "counts") for partition in range(4)}
    assert after == before
    assert "is rebuilt" not in cluster.logs()


def inode(path: Path) -> int:
    """Of a store's identity for RocksDB, which it never writes again."""
    return (path / "IDENTITY").stat().st_ino


def test_status_and_metrics_tell_how_a_restore_gets_on(tmp_path):
    topology = 'application_id = "test"\n[[subtopology]]\nname = "s"\npartitions = 1\n[[subtopology.store]]\n'
    with running_cluster(tmp_path, topology_text=f'{topology}name = "large"\n') as cluster:
        cluster.put("large", {b"k%d" % i: b"1" for i in range(60_000)})
        worker = cluster.start_worker(None, "--restore-processes", "1", ready=False)
        pid = cluster.workers[worker].pid
        wait_until(lambda: restore_processes(pid), "a restore process")
        [child] = restore_processes(pid)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: "restored_records" in row(worker), "word of the restore")
        reported = row(worker)
        assert reported["restored_records"] < 60_000
        assert {"restored_records_per_second", "restore_seconds_left"} <= reported.keys()
        shown = forebay("status", "--url", f"http://{worker}").stdout
        assert re.search(r"restoring .* [\d,]+ restored", shown), shown
        metrics = httpx.get(f"http://{worker}/metrics").text
        assert 'forebay_restored_records{partition="0",store="large"}' in metrics
        assert 'forebay_restored_records_per_second{partition="0",store="large"}' in metrics
        os.kill(child, signal.SIGCONT)
        cluster.wait_ready(worker)
        assert "restored_records" not in row(worker)


def row(worker: str) -> dict[str, object]:
    """What the worker says of its one replica."""
    try:
        [found] = httpx.get(f"http://{worker}/v1/lags").json()["lags"]
    except (httpx.TransportError, ValueError):
        return {}
    return dict(found)


def test_state_is_not_given_up_for_an_empty_log_that_is_a_slip(cluster, tmp_path):
    cluster.put("counts", {b"k": b"1"})
    worker = cluster.start_worker()
    cluster.kill(worker, signal.SIGTERM)
    slip = f"sqlite://{tmp_path / 'slip'}"
    options = ["--topology", cluster.topology_path, "--changelog", slip]
    done = forebay("worker", *options, "--state-dir", cluster.directory / "state-0", "--listen", worker)
    assert done.returncode != 0
    assert "There is no topic 'test-counts-changelog' at sqlite://" in done.stderr
    assert "Check --changelog." in done.stderr

    def value() -> object:
        return httpx.get(f"http://{worker}/v1/stores/counts/keys/k").json().get("value")

    cluster.start_worker(worker)
    assert value() == 1
    cluster.kill(worker, signal.SIGTERM)
    # Meant, an empty log is served.
    assert forebay("topology", "apply", *options).returncode == 0
    cluster.start_worker(worker, "--changelog", slip)
    assert value() is None


def test_state_of_a_reset_log_replaces_no_good_replica(either_cluster):
    """The log was reset while a worker was away."""
    cluster = either_cluster
    alone = ("--num-standby-replicas", "0", "--standby-rebuild-delay-ms", "500")
    keys = [f"k{i}" for i in range(200)]
    spec = cluster.topology.stores["counts"]
    cluster.put("counts", {key.encode(): b"1" for key in keys})
    away, other = (cluster.start_worker(None, *alone, ready=False) for _ in range(2))
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    cluster.kill(away, signal.SIGTERM)

    def served_by_other() -> bool:
        rows = cluster.get(other, "/v1/lags")["lags"]
        served = [row["restored"] for row in rows if (row["store"], row["role"]) == ("counts", "active")]
        return served == [True] * spec.partitions

    wait_until(served_by_other, "the other worker's serving all of it")
    with httpx.Client(base_url=f"http://{router}/v1/stores/counts/keys/") as client:

        def answers() -> Counter[tuple[int, object]]:
            found = [client.get(key) for key in keys]
            return Counter((answer.status_code, answer.json().get("value")) for answer in found)

        cluster.changelog.reset(spec)
        cluster.put("counts", {key.encode(): b"2" for key in keys})
        wait_until(lambda: answers() == {(200, 2): len(keys)}, "the log's new content")
        # Its own state is worthless, and takes seconds to be replaced.
        cluster.start_worker(away, *alone, "--apply-records-per-second", "50", ready=False)

        def shared_again() -> bool:
            assert answers() == {(200, 2): len(keys)}
            roles = cluster.roles(router, "counts").values()
            return {host for held in roles for host, role in held.items() if role == "active"} == {away, other}

        wait_until(shared_again, "its part of the work", 40)


VERSIONS = """
application_id = "test"
[[subtopology]]
name = "s"
partitions = 1
[[subtopology.store]]
name = "plain"
[[subtopology.store]]
name = "history"
kind = "versioned"
history_retention_ms = 100000
"""


def test_damaged_block_omits_nothing_and_is_rebuilt(tmp_path):
    with running_cluster(tmp_path, topology_text=VERSIONS) as cluster:
        keys = [f"k{i:04}" for i in range(3_000)]
        rows = [(key.encode(), b'"%b"' % os.urandom(40).hex().encode(), 1_000) for key in keys]
        for spec in cluster.topology.stores.values():
            cluster.log.append(spec, {0: rows}, "writer", 1)
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        cluster.kill(worker, signal.SIGTERM)
        damaged = [damage(path) for path in (cluster.directory / "state-0").rglob("*.sst")]
        assert len(damaged) >= 2
        cluster.start_worker(worker)
        with httpx.Client(base_url=f"http://{worker}/v1/stores/") as client:
            whole = f"plain/entries?limit={len(keys)}"
            assert client.get(whole).status_code == 503

            def statuses() -> set[int]:
                return {client.get(f"history/keys/{key}").status_code for key in keys}

            # The search for expired versions may have found the damage first.
            assert statuses() <= {200, 503}
            wait_until(lambda: statuses() == {200}, "the rebuild of versions")
            wait_until(lambda: client.get(whole).status_code == 200, "the rebuild of entries")
            assert len(client.get(whole).json()["entries"]) == len(keys)
        assert cluster.logs().count("is rebuilt") == 2


def test_a_store_away_for_too_long_serves_while_it_is_rebuilt(tmp_path):
    """Compaction removed tombstones while the only worker was stopped: an old answer with its lag, no outage."""
    with running_cluster(tmp_path, topology_text=VERSIONS) as cluster:
        spec = cluster.topology.stores["plain"]
        cluster.log.append(spec, {0: [(b"a", b"1", 1_000), (b"deleted", b"1", 1_000)]}, "writer", 1)
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        cluster.kill(worker, signal.SIGTERM)
        rows = [(b"k%02d" % i, b"1", 2_000) for i in range(60)]
        cluster.log.append(spec, {0: [(b"deleted", None, 2_000), *rows, (b"a", b"2", 2_000)]}, "writer", 2)
        cluster.changelog.compact(spec, CompactionLimits(0, 0))
        cluster.start_worker(worker, "--apply-records-per-second", "20", ready=False)
        with httpx.Client(base_url=f"http://{worker}/v1/stores/plain/keys/") as client:
            wait_until(lambda: "it is rebuilt" in cluster.logs(), "the rebuild's beginning")
            cluster.wait_alive(worker)
            # Until it has joined its group it is a standby.
            wait_until(lambda: client.get("a").json().get("role") == "restoring", "an answer")
            old = client.get("a").json()
            assert (old["value"], old["role"]) == (1, "restoring")
            assert old["lag"]["record_lag"] > 60
            assert client.get("deleted").status_code == 200
            assert client.get("a?max_record_lag=10").status_code == 412
            wait_until(lambda: client.get("a").json().get("value") == 2, "the new store")
            assert client.get("deleted").status_code == 404


def damage(file: Path) -> Path:
    """Turn some bits in the middle of a file."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(byte ^ 0xFF for byte in content[middle : middle + 40])
    file.write_bytes(content)
    return file
