"""The alerts fire when they should; they and the panels ask for what is there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALERTING = ROOT / "deploy" / "chart" / "alerts.yml"
PROMETHEUS = ROOT / "deploy" / "prometheus.yml"
PANELS = ROOT / "deploy" / "grafana" / "dashboards" / "forebay.json"


def seconds(duration):
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def alerts(figures, after="5m", **fired):
    """After so long, these alerts have fired of the ones that are about them; a figure goes on as it began."""
    looks = seconds(after) // 15
    return {
        "interval": "15s",
        "input_series": [
            {"series": series, "values": value if "x" in value else f"{value}x{looks}"}
            for series, value in figures.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                "eval_time": after,
                "exp_samples": [{"labels": "{}", "value": count}],
            }
            for name, count in fired.items()
        ],
    }


def lag(instance, partition=0, **figures):
    return {
        f'forebay_{name}{{store="s",partition="{partition}",instance="{instance}"}}': value
        for name, value in figures.items()
    }


def of(application, figures):
    """Of an application that shares its Prometheus with others."""
    return {series.replace("{", f'{{application="{application}",', 1): value for series, value in figures.items()}


def role(instance, partition, held, values="1+0"):
    return {
        f'forebay_replica_role{{store="s",partition="{partition}",role="{held}",instance="{instance}"}}': values
    }


ALERTS = [
    # Spark is gone; a standby that restores says nothing of it, nor one that has just restored.
    alerts(
        lag("a", age_seconds="300+15", time_lag_seconds="0+0", records_applied_total="700+0")
        | lag("b", age_seconds="900+15", time_lag_seconds="600+15", records_applied_total="0+5000")
        | lag("c", age_seconds="300+15", time_lag_seconds="600x12 0x8", records_applied_total="0+5000x12 60000x8"),
        ForebaySourceStopped=1,
        ForebaySourceBehind=0,
        ForebayWorkerBehind=1,
        ForebayLogAway=0,
    ),
    # It writes, but has a backlog: a batch in two minutes, of which there is no more here than a heartbeat. A
    # standby is stuck at a record that it cannot apply.
    alerts(
        lag(
            "a",
            age_seconds="300+15",
            time_lag_seconds="0+0",
            records_applied_total=" ".join(f"{batch}x7" for batch in range(10)),
        )
        | lag("b", age_seconds="300+15", time_lag_seconds="0+15", records_applied_total="1+0"),
        after="20m",
        ForebaySourceStopped=0,
        ForebaySourceBehind=1,
    ),
    # Spark goes after five minutes in which it kept up: no ticket before the page.
    *(
        alerts(
            lag(
                "a",
                age_seconds="10x20 25+15x80",
                time_lag_seconds="0+0",
                records_applied_total="0+100x20 2000x80",
            ),
            after=after,
            ForebaySourceStopped=stopped,
            ForebaySourceBehind=0,
        )
        for after, stopped in (("9m", 0), ("12m", 1), ("20m", 1))
    ),
    # The log is gone: whether Spark is, too, nobody can say.
    alerts(
        lag("a", age_seconds="300+15", time_lag_seconds="300+15", record_lag="0+0"),
        ForebaySourceStopped=0,
        ForebayLogAway=1,
    ),
    # Of one partition it is gone on both of its workers, of another on one.
    alerts(
        lag("a", 0, time_lag_seconds="0+0")
        | lag("a", 1, time_lag_seconds="300+15")
        | lag("b", 1, time_lag_seconds="300+15")
        | lag("b", 2, time_lag_seconds="300+15")
        | lag("c", 2, time_lag_seconds="0+0"),
        ForebayLogAway=1,
        ForebayWorkerBehind=3,
    ),
    alerts(
        {
            'forebay_replica_role{store="s",partition="0",role="standby",instance="a"}': "1+0",
            'forebay_replica_role{store="s",partition="1",role="standby",instance="a"}': "1+0",
            'forebay_replica_role{store="s",partition="1",role="active",instance="b"}': "1+0",
            'forebay_router_unheld_partitions{store="s"}': "0+0",
            'forebay_router_unheld_partitions{store="t"}': "2+0",
            'forebay_replica_failed{store="s",partition="0",instance="a"}': "0+0",
            'forebay_open_transaction_seconds{store="s",partition="0",instance="a"}': "0+15",
            'forebay_open_transaction_seconds{store="s",partition="1",instance="a"}': "0+0",
            'forebay_storage_fault{instance="b"}': "1+0",
            'up{job="forebay-workers",instance="c"}': "0+0",
            'up{job="haproxy",instance="h"}': "0+0",
            'forebay_router_processes{instance="r"}': "4+0",
            'forebay_router_processes_answering{instance="r"}': "3+0",
            'forebay_processes{instance="w"}': "2+0",
            'forebay_processes_answering{instance="w"}': "1+0",
        },
        ForebayPartitionWithoutActive=1,
        ForebayPartitionWithoutHolder=1,
        ForebayReplicaFailed=0,
        ForebayTransactionOpen=1,
        ForebayObstacle=1,
        ForebayProcessAway=3,
    ),
    # Of three disks one is nearly full, and one will be.
    alerts(
        {
            'forebay_state_disk_free_bytes{instance="a"}': "5+0",
            'forebay_state_disk_size_bytes{instance="a"}': "100+0",
            'forebay_state_disk_free_bytes{instance="b"}': "50-0.01",
            'forebay_state_disk_size_bytes{instance="b"}': "100+0",
            'forebay_state_disk_free_bytes{instance="c"}': "50+0",
            'forebay_state_disk_size_bytes{instance="c"}': "100+0",
        },
        after="60m",
        ForebayDiskFillsUp=2,
    ),
    # One worker was active for a partition long ago, and another one is now; of a second none is any more.
    alerts(
        lag("a", 0, snapshot_timestamp_seconds="-90000+0")
        | lag("b", 0, snapshot_timestamp_seconds="0+0")
        | lag("a", 1, snapshot_timestamp_seconds="-90000+0"),
        after="20m",
        ForebaySnapshotsOld=1,
    ),
    alerts(
        {
            'forebay_router_results_total{status="200",store="s"}': "0+900",
            'forebay_router_results_total{status="503",store="s"}': "0+1",
            'forebay_router_results_total{status="429",store="s"}': "0+0",
        },
        after="8m",
        ForebayReadsFail=1,
        ForebayOverloaded=0,
    ),
    # One read in many minutes fails.
    *(
        alerts(
            {
                'forebay_router_results_total{status="200",store="s"}': "0+1",
                'forebay_router_results_total{status="503",store="s"}': "0x12 1x28",
            },
            after=after,
            ForebayReadsFail=0,
        )
        for after in ("4m", "5m", "6m", "7m", "8m", "9m")
    ),
    alerts(
        {
            'forebay_router_results_total{status="200",store="s"}': "0+90",
            'forebay_router_results_total{status="429",store="s"}': "0+10",
        },
        after="8m",
        ForebayOverloaded=1,
        ForebayReadsFail=0,
    ),
    alerts(
        {
            'forebay_router_results_total{status="200",store="s"}': "0+90",
            'forebay_router_results_total{status="200",store="others"}': "0+9000",
            'forebay_router_results_total{status="412",store="s"}': "0+10",
        },
        after="20m",
        ForebayReadsRejected=1,
        ForebayReadsFail=0,
    ),
    # All workers are away: that they are is all that a router knows.
    alerts(
        {'forebay_router_ready{instance="r"}': "0+0", 'up{job="forebay-routers",instance="r"}': "1+0"},
        ForebayNoRouter=1,
        ForebayRouterNotReady=1,
        ForebayPartitionWithoutHolder=0,
    ),
    alerts({'up{job="forebay-routers",instance="r"}': "0+0"}, ForebayNoRouter=1, ForebayRouterNotReady=0),
    # Of two applications at one Prometheus, one is gone and the other is well.
    alerts(
        of("prod", lag("a", age_seconds="300+15", time_lag_seconds="0+0", records_applied_total="700+0"))
        | of("prod", role("a", 0, "standby"))
        | of("prod", {'forebay_router_results_total{status="503"}': "0+10"})
        | of("test", lag("b", age_seconds="1+0", time_lag_seconds="0+0", records_applied_total="0+100"))
        | of("test", role("b", 0, "active"))
        | of("test", {'forebay_router_results_total{status="200"}': "0+99000"}),
        after="15m",
        ForebaySourceStopped=1,
        ForebayPartitionWithoutActive=1,
        ForebayReadsFail=1,
    ),
    # Of two routers one is not ready, and the other was not for half a minute.
    alerts(
        {'forebay_router_ready{instance="r"}': "0+0", 'forebay_router_ready{instance="q"}': "1x12 0x2 1x6"},
        ForebayNoRouter=0,
        ForebayRouterNotReady=1,
    ),
    alerts(
        {'forebay_ready{instance="a"}': "0+0", 'forebay_ready{instance="b"}': "0x120 1x20"},
        after="35m",
        ForebayWorkerNotReady=1,
    ),
    alerts({'forebay_ready{instance="a"}': "0+0"}, after="29m", ForebayWorkerNotReady=0),
    # One router reaches a worker, the other one does not; a second worker is restarted.
    alerts(
        {
            'forebay_router_worker_live{host="a",instance="r"}': "1+0",
            'forebay_router_worker_live{host="a",instance="q"}': "0+0",
            'forebay_router_worker_live{host="b",instance="q"}': "1x12 0x6 1x2",
        },
        ForebayWorkerUnreachable=1,
    ),
    # A client of the router's has no token, nor has a router at the worker; somebody mistyped theirs for a minute.
    alerts(
        {
            'forebay_router_auth_failures_total{status="401",instance="r"}': "0+15",
            'forebay_auth_failures_total{status="403",instance="a"}': "0+75",
            'forebay_auth_failures_total{status="401",instance="b"}': "0x20 0+15x4 60x35",
        },
        after="15m",
        ForebayRequestsRefused=2,
    ),
    # One replica never learnt where its log ends, another did; a third is restored within the half hour.
    alerts(
        role("a", 0, "standby")
        | role("b", 0, "active")
        | lag("b", time_lag_seconds="0+0")
        | role("c", 0, "restoring", "1x80")
        | role("c", 0, "active", "_x81 1x80")
        | lag("c", time_lag_seconds="_x81 0x80"),
        after="40m",
        ForebayLagUnknown=1,
    ),
    # Of two partitions one was held twice. That the other one was, for a while as it moved, is not meant to last.
    alerts(
        role("a", 0, "active")
        | role("b", 0, "standby", "1x360")
        | role("a", 1, "active")
        | role("b", 1, "standby", "1x60"),
        after="130m",
        ForebayRedundancyLost=1,
    ),
    # Twenty minutes without a second worker.
    alerts(
        role("a", 0, "active") | role("b", 0, "standby", "1x360 _x80 1x80"),
        after="130m",
        ForebayRedundancyLost=0,
    ),
]


def test_the_alerts_know_the_jobs_that_are_scraped():
    jobs = [job["job_name"] for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]]
    assert "haproxy" in jobs
    [selector] = re.findall(r'\bjob=~"(.+)"', ALERTING.read_text())
    assert all(re.fullmatch(selector, job) for job in jobs if job != "haproxy")


@pytest.mark.parametrize("path", [ALERTING, PANELS], ids=lambda path: path.name)
def test_every_metric_that_is_queried_is_documented(path):
    text = path.read_text()
    # Histograms are documented once for all of their series.
    requested = {name.removesuffix("_bucket") for name in re.findall(r"\bforebay_\w+", text)}
    documented = set(re.findall(r"`(forebay_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert requested
    assert requested <= documented


def test_the_alerts_fire_when_they_should_and_not_otherwise(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    rules = tmp_path / "tests.yml"
    file = {"rule_files": [str(ALERTING)], "evaluation_interval": "15s", "tests": ALERTS}
    rules.write_text(yaml.safe_dump(file))
    done = subprocess.run([promtool, "test", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rates_are_over_what_any_interval_of_scrapes_fits_into():
    assert set(re.findall(r"\[(\w+)\]", ALERTING.read_text())) == {"5m", "6h"}
    assert set(re.findall(r"\[([^][]+)\]\)", PANELS.read_text())) == {"$__rate_interval"}


def test_no_alert_waits_for_less_than_a_scrape_interval():
    for group in yaml.safe_load(ALERTING.read_text())["groups"]:
        for rule in group["rules"]:
            assert seconds(rule.get("for", group["interval"])) >= seconds(group["interval"]), rule["alert"]


def test_promtool_takes_the_rules_and_the_configuration(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    # Beside each other, as docker-compose.yml mounts them.
    configuration = tmp_path / PROMETHEUS.name
    configuration.write_text(PROMETHEUS.read_text())
    (tmp_path / ALERTING.name).write_text(ALERTING.read_text())
    for kind, path in (("rules", ALERTING), ("config", configuration)):
        done = subprocess.run([promtool, "check", kind, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
