"""Every command and variable in the deployment files exists in the code."""

import contextlib
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml

from examples.flights import flights, job
from forebay.cli import commands
from forebay.settings import SETTINGS, load_settings
from forebay.topology import parse_topology
from tests.cluster import free_port, wait_until

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
STAGES = re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.M)
COPIED = {
    source for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M) for source in line.split()[:-1]
}
KUBERNETES_TEXT = (ROOT / "deploy" / "kubernetes.yaml").read_text()
KUBERNETES = {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(KUBERNETES_TEXT)}
PODS = {
    name: item["spec"]["template"] for (_, name), item in KUBERNETES.items() if "template" in item.get("spec", {})
}
UNITS = {
    path.stem: re.findall(r"^(\w+)=(.+)$", path.read_text(), re.M)
    for path in sorted((ROOT / "deploy").glob("*.service"))
}


def settings_of(command_line: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The settings of a command line without its program's name, by the real command."""
    tier, *arguments = command_line
    command = commands.get_command(click.Context(commands), tier)
    assert command is not None
    given = command.make_context(tier, arguments).params
    given.pop("config")
    return load_settings(tier, given, environment=environment)


def settings_of_pod(name: str) -> dict[str, Any]:
    """The settings of a pod's one container, with what Kubernetes puts in for the first replica."""
    [container] = PODS[name]["spec"]["containers"]
    environment = {variable["name"]: variable.get("value", f"{name}-0") for variable in container.get("env", ())}
    expanded = [re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]], argument) for argument in container["args"]]
    return settings_of(expanded, environment)


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
            'forebay_obstacle{instance="b"}': "1+0",
            'up{job="forebay-workers",instance="c"}': "0+0",
            'up{job="haproxy",instance="h"}': "0+0",
            'forebay_router_processes{instance="r"}': "4+0",
            'forebay_router_processes_answering{instance="r"}': "3+0",
        },
        ForebayPartitionWithoutActive=1,
        ForebayPartitionWithoutHolder=1,
        ForebayReplicaFailed=0,
        ForebayObstacle=1,
        ForebayProcessAway=2,
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
    alerts(
        {
            'forebay_router_reads_total{status="200",route="/"}': "0+900",
            'forebay_router_reads_total{status="503",route="/"}': "0+1",
            'forebay_router_reads_total{status="429",route="/"}': "0+0",
        },
        after="8m",
        ForebayReadsFail=1,
        ForebayOverloaded=0,
    ),
    # One read in many minutes fails.
    *(
        alerts(
            {
                'forebay_router_reads_total{status="200",route="/"}': "0+1",
                'forebay_router_reads_total{status="503",route="/"}': "0x12 1x28",
            },
            after=after,
            ForebayReadsFail=0,
        )
        for after in ("4m", "5m", "6m", "7m", "8m", "9m")
    ),
    alerts(
        {
            'forebay_router_reads_total{status="200",route="/"}': "0+90",
            'forebay_router_reads_total{status="429",route="/"}': "0+10",
        },
        after="8m",
        ForebayOverloaded=1,
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
            'forebay_router_refusals_total{status="401",instance="r"}': "0+15",
            'forebay_refusals_total{status="403",instance="a"}': "0+75",
            'forebay_refusals_total{status="401",instance="b"}': "0x20 0+15x4 60x35",
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


@pytest.mark.parametrize("name", BUILT)
def test_the_service_is_built_from_a_stage_of_the_dockerfile(name):
    build = SERVICES[name]["build"]
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["target"] in STAGES


@pytest.mark.parametrize("name", [name for name, s in BUILT.items() if s["build"]["target"] == "forebay"])
def test_a_forebay_command_is_parsed_by_the_real_command_line(name):
    settings = settings_of(SERVICES[name]["command"], SERVICES[name].get("environment", {}))
    assert settings["listen"].port == 8080


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_started_probed_and_ended_as_the_code_has_it(name):
    settings = settings_of_pod(name)
    [container] = PODS[name]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": settings["listen"].port}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    for probe in {"startupProbe", "livenessProbe"} & container.keys():
        assert container[probe]["httpGet"] == {"path": "/livez", "port": "http"}
    assert PODS[name]["spec"]["terminationGracePeriodSeconds"] * 1000 > settings["shutdown_timeout_ms"]


def test_routers_find_the_workers_by_the_headless_service():
    worker, router = settings_of_pod("forebay-worker"), settings_of_pod("forebay-router")
    [seed] = router["seeds"]
    assert str(worker["advertise"]) == f"forebay-worker-0.{seed}"
    assert KUBERNETES["StatefulSet", "forebay-worker"]["spec"]["serviceName"] == seed.host
    service = KUBERNETES["Service", seed.host]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True


def test_a_pods_files_are_where_its_settings_say():
    settings = settings_of_pod("forebay-worker")
    [container] = PODS["forebay-worker"]["spec"]["containers"]
    mounted = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert settings["topology"].parent == mounted["topology"]
    assert settings["state_dir"].is_relative_to(mounted["state"])
    text = KUBERNETES["ConfigMap", "forebay-topology"]["data"][settings["topology"].name]
    assert parse_topology(tomllib.loads(text)).stores


def test_whatever_selects_pods_selects_some():
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    selectors = [item["spec"]["selector"] for item in KUBERNETES.values() if "selector" in item.get("spec", {})]
    assert selectors
    for selector in selectors:
        assert selector.get("matchLabels", selector) in labels


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_admitted_where_pod_security_is_restricted(name):
    spec = PODS[name]["spec"]
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {kind for volume in spec["volumes"] for kind in volume} <= {"name", "configMap", "emptyDir"}


def test_the_alerts_know_the_jobs_that_are_scraped():
    _, _, commented = KUBERNETES_TEXT.partition("\n# ---\n")
    monitor = yaml.safe_load(re.sub("^# ", "", commented, flags=re.M))["spec"]
    [wanted] = monitor["selector"]["matchExpressions"]
    assert wanted == {"key": monitor["jobLabel"], "operator": "In", "values": list(PODS)}
    jobs = [pod["metadata"]["labels"][monitor["jobLabel"]] for pod in PODS.values()]
    for pod in PODS.values():
        [container] = pod["spec"]["containers"]
        assert monitor["podMetricsEndpoints"][0]["port"] == container["ports"][0]["name"]
    configuration = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    jobs += [job["job_name"] for job in configuration["scrape_configs"] if job["job_name"] != "haproxy"]
    [selector] = re.findall(r'\bjob=~"(.+)"', (ROOT / "deploy" / "alerts.yml").read_text())
    assert all(re.fullmatch(selector, job) for job in jobs)


@pytest.mark.parametrize("name", PODS)
def test_neither_a_node_nor_its_upgrade_takes_all_pods(name):
    labels = {"matchLabels": PODS[name]["metadata"]["labels"]}
    spread = PODS[name]["spec"]["topologySpreadConstraints"]
    assert [constraint["labelSelector"] for constraint in spread] == [labels, labels]
    assert spread[0]["topologyKey"] == "kubernetes.io/hostname"
    assert spread[0]["whenUnsatisfiable"] == "DoNotSchedule"
    assert KUBERNETES["PodDisruptionBudget", name]["spec"] == {"maxUnavailable": 1, "selector": labels}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_started_and_ended_as_the_code_has_it(name):
    unit = dict(UNITS[name])
    environment = dict(value.split("=", 1) for key, value in UNITS[name] if key == "Environment")
    program, *command_line = shlex.split(unit["ExecStart"])
    settings = settings_of(command_line, environment)
    assert Path(program).name == "forebay"
    assert f"forebay-{command_line[0]}" == name
    assert int(unit["TimeoutStopSec"]) * 1000 > settings["shutdown_timeout_ms"]
    assert "LimitNOFILE" in unit
    # All of the machine is read-only but what is named.
    assert unit["ProtectSystem"] == "strict"
    if command_line[0] == "worker":
        own = Path("/var/lib", unit["StateDirectory"])
        assert settings["state_dir"].is_relative_to(own)
        assert Path(settings["changelog"].removeprefix("sqlite://")).is_relative_to(own)


def test_the_units_are_hardened_alike():
    hardening = [
        [
            (key, value)
            for key, value in unit
            if key.startswith(("Protect", "Private", "Restrict", "NoNew", "Lock"))
        ]
        for unit in UNITS.values()
    ]
    assert len(hardening) == 2
    assert hardening[0] == hardening[1]


def test_systemd_takes_the_units():
    systemd_analyze = shutil.which("systemd-analyze")
    if systemd_analyze is None:
        pytest.skip("systemd-analyze is not installed")
    files = [ROOT / "deploy" / f"{name}.service" for name in UNITS]
    done = subprocess.run(
        [systemd_analyze, "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    # That forebay is not installed in its place is no fault of the units'.
    said = [line for line in done.stderr.splitlines() if "forebay" in line and "is not executable" not in line]
    assert said == []


@pytest.mark.parametrize("name", [name for name, s in BUILT.items() if s["build"]["target"] == "demo"])
def test_a_demo_command_is_parsed_by_its_module(name):
    module, *arguments = SERVICES[name]["command"]
    known = {item.__name__: item for item in (flights, job)}
    known[module].make_parser().parse_args(arguments)


def test_every_forebay_variable_is_a_setting():
    files = [ROOT / "docker-compose.yml", ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "kubernetes.yaml"]
    text = "".join(file.read_text() for file in [*files, *(ROOT / "deploy").glob("*.service")])
    assert set(re.findall(r"FOREBAY_\w+", text)) <= {setting.environment for setting in SETTINGS}


def test_every_volume_is_declared_and_every_copied_path_exists():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    assert COPIED
    for source in COPIED:
        assert (ROOT / source).exists(), source


def test_a_build_is_sent_what_is_copied_and_nothing_else():
    first, *others = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"]
    assert first == "*"
    assert {line[1:] for line in others if line.startswith("!")} == COPIED
    assert all(line.startswith(("!", "**/")) for line in others)


def test_a_volume_is_mounted_where_the_image_has_a_directory_of_its_user():
    # Elsewhere it would belong to root, and nothing could be written to it.
    owned = set(re.search(r"install -d -o forebay -g forebay (.+)$", DOCKERFILE, re.M)[1].split())
    mounts = {volume.split(":")[1] for service in BUILT.values() for volume in service.get("volumes", ())}
    assert mounts
    assert mounts <= owned


def test_haproxy_takes_its_configuration():
    haproxy = shutil.which("haproxy")
    if haproxy is None:
        pytest.skip("haproxy is not installed")
    done = subprocess.run(
        [haproxy, "-c", "-f", ROOT / "deploy" / "haproxy.cfg"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_no_router_is_ready_they_answer_all_the_same(cluster, tmp_path):
    haproxy = shutil.which("haproxy")
    if haproxy is None:
        pytest.skip("haproxy is not installed")
    cluster.put("counts", {b"a": b"1"})
    worker, front, stats = (f"127.0.0.1:{free_port()}" for _ in range(3))
    routers = {f"router-{n}:8080": cluster.start_router("--seeds", worker, ready=False) for n in (1, 2)}
    addresses = {":8080": front, ":8404": stats, **routers}
    text = (ROOT / "deploy" / "haproxy.cfg").read_text()
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(re.sub(r"(?<= )\S*:8\d{3}$", lambda found: addresses[found[0]], text, flags=re.M))
    key = f"http://{front}/v1/stores/counts/keys/a"

    def ready_routers():
        with contextlib.suppress(httpx.TransportError):
            counts = httpx.get(f"http://{stats}/metrics").text
            return re.search(r'^haproxy_backend_active_servers{proxy="routers"} (\d+)$', counts, re.M)[1]

    process = subprocess.Popen([haproxy, "-db", "-f", configuration], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: ready_routers() == "0", "HAProxy's finding that no router is ready")
        answer = httpx.get(key)
        assert answer.status_code == 503
        assert answer.json()["type"] == "urn:forebay:problem:not-ready"
        assert "retry-after" in answer.headers
        with httpx.stream("GET", f"{key}/changes") as changes:
            # An EventSource is closed for good by any other status.
            assert changes.status_code == 200
            assert "event: problem" in changes.iter_lines()
        cluster.start_worker(worker)
        wait_until(lambda: ready_routers() == "2", "HAProxy's finding that both are")
        assert httpx.get(key).json()["value"] == 1
    finally:
        process.kill()
        process.wait(15)


def test_what_is_watched_is_what_runs():
    prometheus = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    targets = {
        target.split(":")[0]
        for job in prometheus["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets <= set(SERVICES)
    assert {name for name in SERVICES if name.startswith(("worker", "router"))} <= targets
    backends = re.findall(r"^    server \S+ (\S+):8080$", (ROOT / "deploy" / "haproxy.cfg").read_text(), re.M)
    # Those that are ready, and those that are there.
    assert sorted(backends) == sorted(2 * [name for name in SERVICES if name.startswith("router")])


@pytest.mark.parametrize("path", ["alerts.yml", "grafana/dashboards/forebay.json"])
def test_every_metric_asked_for_is_documented(path):
    text = (ROOT / "deploy" / path).read_text()
    # Histograms are documented once for all of their series.
    asked = {name.removesuffix("_bucket") for name in re.findall(r"\bforebay_\w+", text)}
    documented = set(re.findall(r"`(forebay_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert asked
    assert asked <= documented


def test_the_alerts_fire_when_they_should_and_not_otherwise(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    rules = tmp_path / "tests.yml"
    file = {"rule_files": [str(ROOT / "deploy" / "alerts.yml")], "evaluation_interval": "15s", "tests": ALERTS}
    rules.write_text(yaml.safe_dump(file))
    done = subprocess.run([promtool, "test", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rates_are_over_what_any_interval_of_scrapes_fits_into():
    assert set(re.findall(r"\[(\w+)\]", (ROOT / "deploy" / "alerts.yml").read_text())) == {"5m", "6h"}
    panels = (ROOT / "deploy" / "grafana" / "dashboards" / "forebay.json").read_text()
    assert set(re.findall(r"\[([^][]+)\]\)", panels)) == {"$__rate_interval"}


def test_no_alert_waits_for_less_than_from_one_look_to_the_next():
    for group in yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert seconds(rule.get("for", group["interval"])) >= seconds(group["interval"]), rule["alert"]


def test_promtool_takes_the_rules_and_the_configuration():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    for kind, path in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            [promtool, "check", kind, ROOT / "deploy" / path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
