"""``forebay query`` and ``forebay status`` of what is running."""

import json
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.support.cluster import free_port, running_cluster, unstamped, wait_until
from tests.support.commands import forebay, forebay_on_terminal_of


def test_query_prints_long_numbers_and_surrogates_unchanged(cluster):
    cluster.put("counts", {b"a": b"12345678901234567.12", b"b": b'"\\ud800"'})
    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    for key, value in (("a", "12345678901234567.12"), ("b", '"\\ud800"')):
        assert f'"value": {value},' in forebay("query", "counts", key, "--url", f"http://{router}").stdout
    status = json.loads(forebay("status", "--json", "--url", f"http://{router}").stdout)
    assert {row["store"] for row in status["lags"]} >= {"counts", "hours"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_any_encoding_shows_the_same_document(cluster, encoding):
    """What its encoding has no character for is escaped as in JSON: nothing fails, and nothing is lost."""
    key, value = "ü€", {"text": 'Zürich "€" \U0001f600 \ud800'}
    cluster.put("counts", {key.encode(): json.dumps(value).encode()})
    url = ("--url", f"http://{cluster.start_worker()}")
    shown = forebay_on_terminal_of(encoding, "query", "counts", key, *url)
    assert (shown.returncode, shown.stderr) == (0, "")
    document = json.loads(shown.stdout)
    assert (document["key"], document["value"]) == (key, value)
    assert ("ü" in shown.stdout, "€" in shown.stdout) == (encoding != "ascii", encoding == "utf-8")
    [line] = forebay_on_terminal_of(encoding, "query", "counts", "--all", *url).stdout.splitlines()
    assert unstamped([json.loads(line)]) == [{"key": key, "value": value}]
    for flags in ([], ["--json"]):
        status = forebay_on_terminal_of(encoding, "status", *flags, *url)
        assert (status.returncode, status.stderr) == (0, "")
        assert "counts" in status.stdout
    missing = forebay_on_terminal_of(encoding, "query", "counts", "€", *url)
    assert json.loads(missing.stdout)["key"] == "€"
    refused = forebay_on_terminal_of(encoding, "topology", "show", "--topology", "/€.toml")
    assert ("€.toml" if encoding == "utf-8" else r"\u20ac.toml") in refused.stderr


def test_query_prints_all_pages_an_item_a_line(cluster):
    cluster.put("counts", {b"k%03d" % n: b"1.%d0" % n for n in range(25)})
    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    done = forebay("query", "counts", "--all", "--limit", 10, "--url", f"http://{router}")
    lines = [re.sub(r',"timestamp_ms":\d+', "", line) for line in done.stdout.splitlines()]
    assert lines == [f'{{"key":"k{n:03}","value":1.{n}0}}' for n in range(25)]
    assert re.fullmatch(r"25 entries, at most .+ behind the log\.\n", done.stderr)
    refused = forebay("query", "counts", "--all", "--max-age-ms", 0, "--url", f"http://{router}")
    assert refused.returncode == 1
    assert '"status":412' in refused.stdout.replace(" ", "")
    misplaced = forebay("query", "counts", "k000", "--all", "--url", f"http://{router}")
    assert (misplaced.returncode, misplaced.stdout) == (2, "")


def test_a_status_that_is_watched_goes_to_a_pipe_too(cluster):
    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    command = [sys.executable, "-m", "forebay", "status", "--watch", "--interval-ms", "50"]
    with subprocess.Popen([*command, "--url", f"http://{router}"], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        tables = 0
        while tables < 3:
            tables += next(watching.stdout).startswith("tasks:")
        watching.kill()


def test_query_lists_sessions_and_versions_as_of_a_time(tmp_path):
    stores = (
        ("visits", "session", "gap_ms = 1000\nretention_ms = 100000"),
        ("prices", "versioned", "history_retention_ms = 86400000"),
    )
    tables = [f'[[subtopology.store]]\nname = "{name}"\nkind = "{kind}"\n{more}\n' for name, kind, more in stores]
    topology = 'application_id = "test"\n[[subtopology]]\nname = "all"\npartitions = 2\n' + "\n".join(tables)
    with running_cluster(tmp_path, topology_text=topology) as cluster:
        cluster.put("visits", {b"ann" + b"".join(t.to_bytes(8, "big") for t in (5000, 4000)): b'"shop"'})
        cluster.put("prices", {b"tea": b"1"})
        between = time.time() + 0.002
        wait_until(lambda: time.time() > between, "a later time")
        cluster.put("prices", {b"tea": b"2"})
        address = cluster.start_worker()

        def requested(*arguments: str) -> dict[str, Any]:
            done = forebay("query", *arguments, "--url", f"http://{address}")
            return {**json.loads(done.stdout), "ended": done.returncode}

        assert [visit["value"] for visit in requested("visits", "ann", "--sessions")["sessions"]] == ["shop"]
        first, second = requested("--versions", "prices", "tea")["versions"]
        assert (first["value"], second["value"]) == (1, 2)
        assert requested("prices", "tea", "--as-of", str(second["valid_from_ms"] - 1))["value"] == 1
        assert requested("prices", "tea", "--as-of", "1990-01-01T00:00:00Z")["ended"] == 1
        [visit] = requested("visits", "--sessions", "--from", "4500")["sessions"]
        assert (visit["key"], visit["value"]) == ("ann", "shop")
        assert requested("visits", "--sessions", "--to", "1970-01-01T00:00:03Z")["sessions"] == []
        (newest,) = requested("prices", "tea", "--versions", "--reverse", "--limit", "1")["versions"]
        assert newest == second
        assert requested("prices")["type"] == "urn:forebay:problem:wrong-store-kind"


def test_entries_are_listed_page_by_page(cluster):
    cluster.put("counts", {b"a%d" % i: b"%d" % i for i in range(5)} | {b"b": b"9"})
    address = cluster.start_worker()

    def page(*arguments: object) -> dict[str, Any]:
        return dict(json.loads(forebay("query", "counts", "--url", f"http://{address}", *arguments).stdout))

    def keys(*arguments: object) -> list[str]:
        return [entry["key"] for entry in page(*arguments)["entries"]]

    assert keys("--prefix", "a") == ["a0", "a1", "a2", "a3", "a4"]
    assert keys("--from", "a3", "--to", "b") == ["a3", "a4"]
    assert keys("--from", "a3", "--max-record-lag", 0, "--reverse", "--limit", 1) == ["b"]
    first = page("--limit", 4)
    assert [entry["key"] for entry in first["entries"]] == ["a0", "a1", "a2", "a3"]
    assert keys("--limit", 4, "--cursor", first["next"]) == ["a4", "b"]


def test_zero_is_a_bound(cluster):
    cluster.put("counts", {b"a": b"1"})
    address = cluster.start_worker()
    requested = ("query", "counts", "a", "--url", f"http://{address}", "--max-age-ms", 0)
    done = forebay(*requested)
    assert (done.returncode, json.loads(done.stdout)["type"]) == (1, "urn:forebay:problem:lag-exceeds-tolerance")


def test_version_query_and_status(cluster):
    cluster.put("counts", {b"a": b'{"n":1}'})
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    assert forebay("--version").stdout.startswith("forebay, version ")
    done = forebay("query", "counts", "a", "--url", f"http://{router}", "--max-record-lag", 0)
    assert done.returncode == 0
    assert '"record_lag": 0' in done.stdout
    assert forebay("query", "counts", "nobody", "--url", f"http://{router}").returncode == 1
    cluster.put("counts", {b"": b'"empty"', b"..": b'"dots"'})
    cluster.put("numbers", {(-7).to_bytes(8, "big", signed=True): b'"minus seven"'})
    for store, key, value in (("counts", "", "empty"), ("counts", "..", "dots"), ("numbers", "-7", "minus seven")):
        wait_until(
            lambda: forebay("query", "--url", f"http://{router}", "--", store, key).returncode == 0,  # noqa: B023
            f"the key {key!r}",
        )
        assert f'"value": "{value}"' in forebay("query", "--url", f"http://{router}", "--", store, key).stdout
    assert forebay("query", "counts", ".", "--url", f"http://{router}").returncode == 1
    table = forebay("status", "--url", f"http://{router}").stdout
    for task in ("0_0", "0_3", "1_1"):
        assert task in table
    assert table.count("active") >= 6
    shown = forebay("topology", "show", "--topology", cluster.topology_path).stdout
    assert "window_size_ms = " in shown
    assert f"{cluster.topology.application_id}-counts-changelog" in shown, (
        "names are not broken where nobody looks"
    )


def check(url: str, *bounds: object) -> list[str]:
    """What ``status --check`` finds wanting."""
    done = forebay("status", "--check", *bounds, "--url", f"http://{url}")
    assert done.returncode == bool(done.stderr), done
    return done.stderr.splitlines()


def test_check_names_partitions_without_an_active(cluster):
    """An active must be within the bounds."""
    worker = f"127.0.0.1:{free_port()}"
    router = cluster.start_router("--seeds", worker, ready=False)
    [not_ready] = check(router)
    assert "is not ready" in not_ready
    cluster.start_worker(worker)
    cluster.wait_settled(router, replicas=1)
    assert check(router, "--max-record-lag", 0, "--max-time-lag-ms", 60_000) == []
    # Nothing was written, hence no heartbeat either.
    partitions = [
        (name, n) for name, spec in sorted(cluster.topology.stores.items()) for n in range(spec.partitions)
    ]
    unknown = check(router, "--max-age-ms", 60_000)
    assert [line.partition(":")[0] for line in unknown] == [f"{name}, partition {n}" for name, n in partitions]
    assert all(line.endswith(": age_ms is unknown") for line in unknown)
    late = check(router, "--max-time-lag-ms", 0)
    assert late[0].startswith("counts, partition 0: time_lag_ms ")
    assert late[0].endswith(" > 0")
    [*_, advice] = check(worker, "--standbys", 1)
    assert advice.startswith(f"http://{worker} is a worker, which knows only what it holds.")
    cluster.put("counts", {b"a": b"1"})
    left = [f"{name}, partition {n}" for name, n in partitions if name != "counts"]
    wait_until(
        lambda: [line.partition(":")[0] for line in check(router, "--max-age-ms", 60_000)] == left, "a heartbeat"
    )
    alone = [f"{name}, partition {n}: 0 of 1 standbys" for name, n in partitions]
    assert check(router, "--standbys", 1) == alone
    second = cluster.start_worker()
    wait_until(lambda: check(router, "--standbys", 1, "--max-record-lag", 0) == [], "the standbys")
    cluster.kill(second, signal.SIGKILL)
    cluster.kill(worker, signal.SIGKILL)
    gone = [f"{name}, partition {n}: no active replica" for name, n in partitions]
    wait_until(lambda: check(router) == gone, "word of the worker being away")


def test_a_status_says_what_is_wrong_and_the_remedy(cluster):
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    cluster.kill(worker, signal.SIGKILL)
    shown = ""

    def reported() -> bool:
        nonlocal shown
        shown = forebay("status", "--url", f"http://{router}").stdout
        return f"error: The worker {worker} does not answer. Start it again." in shown

    wait_until(reported, "word of the worker being away")
    document = json.loads(forebay("status", "--json", "--url", f"http://{router}").stdout)
    assert "worker-silent" in [finding["kind"] for finding in document["findings"]]
