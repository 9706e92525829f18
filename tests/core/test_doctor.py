"""``forebay doctor``: what it finds of real processes, and how it judges what cannot be caused here."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forebay import __version__
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.doctor.command import doctor
from forebay.doctor.machine import disk_verdict, java_verdict, open_files_verdict
from forebay.doctor.processes import Answers, process_verdict
from forebay.topology_file import load_topology
from tests.support.cluster import free_port, wait_until


def diagnosis(*arguments: object) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit status, and the findings by check."""
    outcome = CliRunner().invoke(doctor, [*map(str, arguments), "--json"], catch_exceptions=False)
    document = json.loads(outcome.stdout)
    return outcome.exit_code, {check["name"]: check["findings"] for check in document["checks"]}


def kinds(findings: list[dict[str, Any]]) -> list[str]:
    assert all(finding["remedy"] for finding in findings)
    return [finding["kind"] for finding in findings]


def test_healthy_cluster_has_no_findings(cluster):
    """Every process is checked, and another topology than theirs is a finding."""
    cluster.put("counts", {b"a": b"1"})
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    options = ("--topology", cluster.topology_path, "--changelog", cluster.changelog.url)
    _, found = diagnosis(*options, "--url", f"http://{router}")
    assert {"topology", "changelog", "changelog directory", "open files", "java"} <= found.keys()
    assert found["changelog"] == found["topology"] == []
    for process in (router, worker):
        assert set(kinds(found[f"http://{process}"])) <= {"partitions-lag-unknown"}
    other = cluster.directory / "other.toml"
    other.write_text(cluster.topology_text.replace("partitions = 4", "partitions = 5"))
    status, found = diagnosis("--topology", other, *options[2:], "--url", f"http://{worker}")
    assert status == 1
    assert "topology-differs" in kinds(found[f"http://{worker}"])
    assert kinds(found["changelog"]) == ["topic-unsuitable"]
    assert "has 4 partitions, the topology has 5" in found["changelog"][0]["detail"]


def test_worker_that_died_is_named_once(cluster):
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    cluster.kill(worker)
    url = f"http://{router}"

    def of_worker() -> list[str]:
        _, found = diagnosis("--url", url)
        details = [finding["detail"] for findings in found.values() for finding in findings]
        return [detail for detail in details if worker in detail]

    wait_until(lambda: of_worker() == [f"The worker {worker} does not answer."], "word of the worker being away")


@pytest.mark.parametrize("option", ["--topology", "--auth-tokens-file", "--token-file"])
def test_file_that_is_not_there_is_one_finding(option):
    status, found = diagnosis(option, "/nope")
    [finding] = [finding for findings in found.values() for finding in findings if finding["severity"] == "error"]
    assert (status, finding["remedy"]) == (1, f"Name one that exists with {option}.")


def test_what_is_missing_is_found_with_its_remedy(tmp_path):
    topology = tmp_path / "topology.toml"
    topology.write_text('application_id = "a"\n[[subtopology]]\nname = "s"\npartitions = 1\n')
    status, found = diagnosis("--topology", topology)
    assert (status, kinds(found["topology"])) == (1, ["topology-unusable"])
    topology.write_text(topology.read_text() + '[[subtopology.store]]\nname = "s"\n')
    SqliteChangelog(tmp_path / "log")
    token, accepted = tmp_path / "token", tmp_path / "tokens"
    token.write_text("a-token-of-enough-letters")
    accepted.write_text("name short")
    for path in (token, accepted):
        path.chmod(0o644)
    url = f"http://127.0.0.1:{free_port()}"
    status, found = diagnosis(
        "--topology", topology, "--changelog", f"sqlite://{tmp_path}/log", "--url", url, "--token-file", token,
        "--auth-tokens-file", accepted, "--state-dir", tmp_path / "state",
    )  # fmt: skip
    assert status == 1
    assert kinds(found["changelog"]) == ["topic-missing"]
    assert found["changelog"][0]["remedy"] == "Run: forebay topology apply"
    assert kinds(found[url]) == ["process-unreachable"]
    assert found["token files"][0]["remedy"] == f"Run: chmod 600 {token}"
    assert kinds(found["accepted tokens"]) == ["tokens-unusable", "token-file"]
    assert str(found["accepted tokens"]).count("openssl") == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("command", "major", "spark", "wrong"),
    [
        ("/bin/java", 17, "4.0.5", False),
        ("/bin/java", 8, "4.2.1", True),
        ("/bin/java", 25, "4.1.4", True),
        ("/bin/java", 25, "4.2.1", False),
        ("/bin/java", 26, "4.2.1", True),
        (None, None, "4.2.1", True),
    ],
)
def test_java_is_one_that_spark_runs_on(command, major, spark, wrong):
    assert bool(java_verdict(command, major, spark).findings) is wrong


def test_limits_and_disks_are_judged_by_what_is_needed(cluster):
    topology = load_topology(cluster.topology_path)
    assert open_files_verdict(1_024, topology).findings
    assert not open_files_verdict(5_000, topology).findings
    assert open_files_verdict(4_100, topology).findings, "a store takes about ten"
    assert not disk_verdict("d", Path("/"), 50 << 30, 100 << 30).findings
    assert disk_verdict("d", Path("/"), 5 << 30, 100 << 30).findings[0].severity == "warning"
    assert disk_verdict("d", Path("/"), 1 << 20, 100 << 30).findings[0].severity == "error"


def answers(**changed: Any) -> Answers:
    health = {"application_id": "a", "findings": []}
    return Answers({"tier": "router", "state": "ready"}, health, __version__, 0.0, 5.0)._replace(**changed)


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"ahead_ms": 2_000.0}, "clock-skew", "2.0 s ahead of"),
        ({"ahead_ms": -2_000.0}, "clock-skew", "2.0 s behind"),
        ({"version": "0.0.9"}, "version-differs", "is forebay 0.0.9"),
    ],
)
def test_clocks_and_versions_that_differ_are_found(changed, kind, words):
    [finding] = process_verdict("http://r", answers(**changed), None).findings
    assert (finding.kind, words in finding.detail) == (kind, True)
    assert not process_verdict("http://r", answers(ahead_ms=200.0), None).findings
    assert not process_verdict("http://r", answers(ahead_ms=2_000.0, unsure_ms=3_000.0), None).findings
