from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from forebay.errors import ChangelogError, SettingError
from forebay.task_ids import TopicPartition
from forebay_changelog.command import changelog
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.topology_command import topology
from tests.support.cluster import TOPOLOGY, running_cluster, wait_until


def run(cluster, *arguments):
    name, *rest = arguments
    common = ["--topology", str(cluster.topology_path), "--changelog", cluster.changelog.url]
    outcome = CliRunner().invoke(changelog, [name, *common, *rest])
    if outcome.exception and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_logs_are_listed_compacted_and_reset(cluster):
    cluster.put("counts", {b"a": b"1"})
    cluster.put("counts", {b"a": b"2"})
    assert "counts" in run(cluster, "ls")
    # Younger records stay.
    assert run(cluster, "compact", "counts").startswith("0 records of test-counts-changelog removed")
    removed = run(cluster, "compact", "counts", "--min-compaction-lag-ms", "0")
    # The first value, and in each of the four partitions the first heartbeat.
    assert removed.startswith("5 records of test-counts-changelog removed")
    before = cluster.changelog.identity("test-counts-changelog")
    common = ["--topology", str(cluster.topology_path), "--changelog", cluster.changelog.url]
    unanswered = CliRunner().invoke(changelog, ["reset", *common, "counts"])
    assert "--yes" in str(unanswered.exception)
    futures = CliRunner().invoke(changelog, ["reset", *common, "counts"], input="n\n")
    assert "empties test-counts-changelog" in futures.output
    assert cluster.changelog.identity("test-counts-changelog") == before
    run(cluster, "reset", "counts", "--yes")
    assert cluster.changelog.identity("test-counts-changelog") != before


def test_a_listing_creates_nothing(cluster, tmp_path):
    common = ["--topology", str(cluster.topology_path), "--changelog"]
    outcome = CliRunner().invoke(changelog, ["ls", *common, f"sqlite://{tmp_path}/empty"])
    assert "no changelog in" in str(outcome.exception)
    assert not (tmp_path / "empty").exists()
    SqliteChangelog(tmp_path / "other")
    for _ in range(2):
        assert "missing" in CliRunner().invoke(changelog, ["ls", *common, f"sqlite://{tmp_path}/other"]).output


def test_apply_says_which_logs_it_creates(cluster, tmp_path):
    common = ["--topology", str(cluster.topology_path), "--changelog", f"sqlite://{tmp_path}/new"]
    for state in ("created", "exists"):
        lines = CliRunner().invoke(topology, ["apply", *common]).stdout.splitlines()
        assert "counts: test-counts-changelog, 4 partitions, " + state in lines


def test_a_listing_tells_what_is_lost_and_leaves_it_lost(cluster):
    cluster.put("counts", {b"a": b"1"})
    lost = Path(cluster.changelog.path(TopicPartition("test-counts-changelog", 2)))
    assert "?" not in run(cluster, "ls")
    lost.unlink()
    assert "?" in run(cluster, "ls")
    assert not lost.exists()


@pytest.mark.parametrize("command", [["reset", "theirs", "--yes"], ["retire-writer", "theirs", "w"]])
def test_an_external_log_is_left_as_it_is(tmp_path, command):
    text = TOPOLOGY + '[[subtopology.store]]\nname = "theirs"\ntopic = "theirs"\nexternal = true\n'
    with (
        running_cluster(tmp_path, topology_text=text) as cluster,
        pytest.raises(SettingError, match="belongs to others"),
    ):
        run(cluster, *command)


def test_ls_lists_other_logs_beside_an_unsuitable_one(cluster):
    """A log whose partition count does not match the topology is named, and the rest are listed."""
    other = cluster.topology_path.read_text().replace("partitions = 2", "partitions = 3")
    cluster.topology_path.write_text(other)
    common = ["--topology", str(cluster.topology_path), "--changelog", cluster.changelog.url]
    outcome = CliRunner().invoke(changelog, ["ls", *common])
    assert "unsuitable" in outcome.output
    assert cluster.changelog.identity("test-counts-changelog")[:8] in outcome.output
    assert isinstance(outcome.exception, ChangelogError)
    assert "has 2 partitions, the topology has 3" in str(outcome.exception)


def test_a_store_that_is_not_in_the_topology_is_named(cluster):
    with pytest.raises(SettingError, match="no store 'nope'"):
        # Without asking first.
        run(cluster, "reset", "nope")


def test_a_retired_writer_no_longer_counts_in_the_age(cluster):
    cluster.put("counts", {b"a": b"1"}, writer="gone")
    address = cluster.start_worker()
    url = f"http://{address}/v1/stores/counts/keys/a"
    assert httpx.get(url).json()["lag"]["age_ms"] is not None
    run(cluster, "retire-writer", "counts", "gone")
    wait_until(lambda: httpx.get(url).json()["lag"]["age_ms"] is None, "the writer's retirement")


def test_the_log_of_a_versioned_store_keeps_its_history(tmp_path):
    text = TOPOLOGY + '[[subtopology.store]]\nname = "prices"\nkind = "versioned"\nhistory_retention_ms = 1000\n'
    with running_cluster(tmp_path, topology_text=text) as cluster:
        for value in (b"1", b"2"):
            cluster.put("prices", {b"a": value})
        # Of two heartbeats the first goes, in each of the partitions.
        assert f"{cluster.topology.stores['prices'].partitions} records of test-prices-changelog removed" in run(
            cluster, "compact", "prices", "--min-compaction-lag-ms", "0"
        )
        address = cluster.start_worker()
        versions = httpx.get(f"http://{address}/v1/stores/prices/keys/a/versions").json()["versions"]
        assert [version["value"] for version in versions] == [1, 2]
