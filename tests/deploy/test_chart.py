"""What the Helm chart renders fits together, and fits the code."""

import base64
import contextlib
import json
import re
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from deploy.generate import SCHEMA, SET_BY_THE_CHART, text_of, values_schema
from helm_python.chart import Chart, lint
from helm_python.config import Config
from helm_python.errors import HelmError

from forebay.bearer_tokens import TokensFile
from forebay.errors import Unauthenticated
from forebay.settings import settings_for
from forebay.topology_file import parse_topology
from tests.support.chart import CHART, Objects, rendered
from tests.support.command_lines import settings_of


def pods_of(objects: Objects) -> dict[str, dict[str, Any]]:
    return {
        name: item["spec"]["template"] for (_, name), item in objects.items() if "template" in item.get("spec", {})
    }


KUBERNETES = rendered()
PODS = pods_of(KUBERNETES)
PROMETHEUS, CONTROLLER = (
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    for name in ("monitoring", "ingress")
)
EVERYTHING = rendered(
    router={
        "autoscaling": {"enabled": True},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["a.example", "b.example"],
            "tls": [{"secretName": "tls", "hosts": ["a.example"]}],
        },
    },
    networkPolicy={"enabled": True, "alsoFrom": [PROMETHEUS], "routersFrom": [CONTROLLER]},
    test={"caSecret": {"name": "ca", "key": "ca.crt"}},
)
ENCRYPTED = {
    "worker": {"settings": {"tls_certificate_file": "/a/tls.crt", "tls_key_file": "/a/tls.key"}},
    "router": {"settings": {"worker_ca_file": "/a/ca.crt"}},
}


def settings_of_pod(name: str, pods: dict[str, dict[str, Any]] = PODS) -> dict[str, Any]:
    """The settings of a pod's one container, with what Kubernetes puts in for the first replica."""
    [container] = pods[name]["spec"]["containers"]
    variables = container["env"] or ()
    environment = {variable["name"]: variable.get("value", f"{name}-0") for variable in variables}
    expanded = [re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]], argument) for argument in container["args"]]
    return settings_of(expanded, environment)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_started_probed_and_ended_as_the_code_has_it(name):
    settings = settings_of_pod(name)
    [container] = PODS[name]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": settings["listen"][0].port}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    for probe in {"startupProbe", "livenessProbe"} & container.keys():
        assert container[probe]["httpGet"] == {"path": "/livez", "port": "http"}
    assert PODS[name]["spec"]["terminationGracePeriodSeconds"] * 1000 > settings["shutdown_timeout_ms"]


def test_routers_find_the_workers_by_the_headless_service():
    worker, router = settings_of_pod("forebay-worker"), settings_of_pod("forebay-router")
    [seed] = router["seeds"]
    assert str(worker["advertise"]) == f"forebay-worker-0.{seed}"
    headless, *rest = seed.host.split(".")
    assert rest == ["default", "svc"]
    assert KUBERNETES["StatefulSet", "forebay-worker"]["spec"]["serviceName"] == headless
    service = KUBERNETES["Service", headless]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True


@pytest.mark.parametrize("release", ["r" * 53, "r" * 44 + "-" + "r" * 8, "r" * 45])
def test_a_release_with_a_long_name_gets_pods(release):
    """Helm allows 53 characters. Of a StatefulSet's pods a label is its name, a dash and a hash of up to ten."""
    objects = rendered(release=release)
    [name] = [name for kind, name in objects if kind == "StatefulSet"]
    assert len(name) <= 52
    assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", name.removesuffix("-worker"))
    headless = objects["StatefulSet", name]["spec"]["serviceName"]
    assert ("Service", headless) in objects
    pods = pods_of(objects)
    [seed] = settings_of_pod(f"{release}-router", pods)["seeds"]
    assert seed.host.split(".")[0] == headless
    assert settings_of_pod(name, pods)["advertise"].host == f"{name}-0.{seed.host}"
    assert max(len(label) for pod in pods.values() for label in pod["metadata"]["labels"].values()) <= 63
    assert max(len(name) for kind, name in objects if kind == "Service") <= 63


def test_a_pods_files_are_where_its_settings_name_them():
    settings = settings_of_pod("forebay-worker")
    [container] = PODS["forebay-worker"]["spec"]["containers"]
    mounted = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert settings["topology"].parent == mounted["topology"]
    assert settings["state_dir"].is_relative_to(mounted["state"])
    text = KUBERNETES["ConfigMap", "forebay-topology"]["data"][settings["topology"].name]
    assert parse_topology(tomllib.loads(text)).stores


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes_takes_its_own_objects(version):
    for item in EVERYTHING.values():
        kubernetes_validate.validate(item, version, strict=True)


def test_whatever_selects_pods_selects_those_of_its_release():
    pods = pods_of(rendered(release="shop"))
    selected = {}
    for release in ("shop", "forebay"):
        for (kind, name), item in rendered(release, podMonitor={"enabled": True}).items():
            if "selector" in item.get("spec", {}):
                selector = item["spec"]["selector"]
                wanted = selector.get("matchLabels", selector).items()
                selected[kind, name] = [pod for pod in pods if wanted <= pods[pod]["metadata"]["labels"].items()]
    worker, router = ["shop-worker"], ["shop-router"]
    assert {key: found for key, found in selected.items() if found} == {
        ("Service", "shop-workers"): worker,
        ("StatefulSet", "shop-worker"): worker,
        ("PodDisruptionBudget", "shop-worker"): worker,
        ("Service", "shop"): router,
        ("Deployment", "shop-router"): router,
        ("PodDisruptionBudget", "shop-router"): router,
        ("PodMonitor", "shop"): list(pods),
    }


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
    assert {kind for volume in spec["volumes"] for kind in volume} <= {"name", "configMap", "emptyDir", "secret"}


@pytest.mark.parametrize("name", PODS)
def test_neither_a_node_nor_its_upgrade_takes_all_pods(name):
    labels = KUBERNETES["PodDisruptionBudget", name]["spec"]["selector"]
    assert labels["matchLabels"].items() <= PODS[name]["metadata"]["labels"].items()
    spread = PODS[name]["spec"]["topologySpreadConstraints"]
    assert [constraint["labelSelector"] for constraint in spread] == [labels, labels]
    assert spread[0]["topologyKey"] == "kubernetes.io/hostname"
    assert spread[0]["whenUnsatisfiable"] == "DoNotSchedule"
    assert KUBERNETES["PodDisruptionBudget", name]["spec"] == {"maxUnavailable": 1, "selector": labels}


def test_the_schema_is_current():
    assert SCHEMA.read_text() == text_of(values_schema()), "run python -m deploy.generate"


def test_the_chart_is_for_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version("forebay")


def test_helm_finds_nothing_to_warn_of():
    findings = [message for message in lint(CHART, strict=True)["messages"] if message["severity"] > 1]
    assert findings == []


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_every_setting_arrives(tier):
    given = {}
    for setting in settings_for(tier):
        if setting.name in SET_BY_THE_CHART[tier]:
            continue
        match setting.kind:
            case "integer":
                # As a float it would be written as 1e+06.
                given[setting.name] = setting.most or max(setting.least, 1_000_000)
            case "boolean":
                given[setting.name] = not setting.default
            case "choice":
                given[setting.name] = next(choice for choice in setting.choices if choice != setting.default)
            case "names":
                given[setting.name] = ["http://a", "http://b"] if "origins" in setting.name else ["a", "b"]
            case "path":
                given[setting.name] = f"/etc/forebay/secrets/{setting.name}"
            case _:
                given[setting.name] = f"kafka://{setting.name}:1"
    name = f"forebay-{tier}"
    found = settings_of_pod(name, pods_of(rendered(**{**ENCRYPTED, tier: {"settings": given}})))
    expected = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    assert {key: type(expected[key])(found[key]) for key in given} == expected


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"worker": {"settings": {"num_standby_replica": 2}}}, "num_standby_replica"),
        ({"worker": {"settings": {"num_standby_replicas": -1}}}, "num_standby_replicas"),
        ({"worker": {"settings": {"state_dir": "/elsewhere"}}}, "state_dir"),
        ({"worker": {"settings": {"changelog": "sqlite:///changelog"}}}, "kafka://"),
        ({"worker": {"settings": {"changelog": None}}}, "changelog"),
        ({"worker": {"settings": {"processes": 0}}}, "processes"),
        ({"router": {"settings": {"log_level": "loud"}}}, "log_level"),
        ({"router": {"replica": 3}}, "replica"),
        ({"topolgy": "application_id = 'shop'"}, "topolgy"),
    ],
)
def test_a_value_that_is_wrong_is_named(values, named):
    with pytest.raises(HelmError, match=re.escape(named)):
        rendered(**values)


def test_the_grace_period_follows_the_time_to_shut_down():
    pods = pods_of(rendered(worker={"settings": {"shutdown_timeout_ms": 120_000}}))
    assert pods["forebay-worker"]["spec"]["terminationGracePeriodSeconds"] > 120
    assert pods["forebay-router"]["spec"]["terminationGracePeriodSeconds"] == 60


def test_only_a_new_topology_restarts_the_workers():
    other = rendered(topology=rendered()["ConfigMap", "forebay-topology"]["data"]["topology.toml"] + "# more")
    resized = rendered(worker={"replicas": 5})
    assert pods_of(other)["forebay-worker"] != PODS["forebay-worker"]
    assert pods_of(other)["forebay-router"] == PODS["forebay-router"]
    assert pods_of(resized) == PODS


def test_secrets_are_files_that_both_tiers_may_read():
    pods = pods_of(rendered(secrets=["broker", "tokens"]))
    for pod in pods.values():
        [container] = pod["spec"]["containers"]
        assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsUser"]
        paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        secrets = [volume for volume in pod["spec"]["volumes"] if "secret" in volume]
        assert {volume["secret"]["secretName"]: paths[volume["name"]] for volume in secrets} == {
            "broker": "/etc/forebay/secrets/broker",
            "tokens": "/etc/forebay/secrets/tokens",
            "forebay-tokens": "/etc/forebay/tokens",
        }


def files_of(name: str, objects: Objects) -> dict[Path, bytes]:
    """What Kubernetes writes from the chart's secret into a pod."""
    spec = pods_of(objects)[name]["spec"]
    [mounted] = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "tokens"]
    [volume] = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "tokens"]
    data = objects["Secret", volume["secretName"]]["data"]
    return {
        Path(mounted["mountPath"], item["path"]): base64.b64decode(data[item["key"]]) for item in volume["items"]
    }


def written(directory: Path, path: Path, files: dict[Path, bytes]) -> Path:
    (directory / path.name).write_bytes(files[path])
    return directory / path.name


def test_both_tiers_require_tokens_that_the_chart_makes(tmp_path):
    tokens = {
        key: base64.b64decode(value) for key, value in KUBERNETES["Secret", "forebay-tokens"]["data"].items()
    }
    allowed = {}
    for tier in ("worker", "router"):
        settings, files = settings_of_pod(f"forebay-{tier}"), files_of(f"forebay-{tier}", KUBERNETES)
        accepted = TokensFile(written(tmp_path, settings["auth_tokens_file"], files))
        if tier == "router":
            assert files[settings["worker_token_file"]] == tokens["router"]
        else:
            assert files[settings["snapshot_token_file"]] == tokens["snapshots"]
        for holder in ("client", "router", "prometheus", "snapshots"):
            with contextlib.suppress(Unauthenticated):
                accepted.authenticate("GET", "/metrics", b"Bearer " + tokens[holder])
                allowed.setdefault(tier, []).append(holder)
    assert allowed == {"worker": ["router", "prometheus"], "router": ["client", "prometheus"]}
    assert rendered()["Secret", "forebay-tokens"]["data"]["client"] != tokens["client"]


@contextlib.contextmanager
def api_server(documents: dict[str, Any]) -> Iterator[str]:
    """What Helm reads of a Kubernetes API server; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = documents.get(urlsplit(self.path).path)
            self.send_response(404 if document is None else 200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_an_upgrade_keeps_the_tokens_that_are_in_the_cluster():
    kept = {"metadata": {"name": "shop-tokens"}, "data": {"client": "b2xk", "routers": "b3duCg=="}}
    documents = {
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [{"name": "secrets", "namespaced": True, "kind": "Secret", "verbs": ["get"]}],
        },
        "/api/v1/namespaces/default/secrets/shop-tokens": {"apiVersion": "v1", "kind": "Secret", **kept},
    }
    with (
        api_server(documents) as url,
        Config(kubeconfig_content="{apiVersion: v1, kind: Config}", kube_apiserver=url) as config,
    ):
        texts = config.render(Chart.load(CHART), {}, name="shop", is_upgrade=True)
    assert yaml.safe_load(texts["forebay/templates/tokens.yaml"])["data"] == kept["data"]


def test_a_secret_of_ones_own_holds_the_tokens():
    objects = rendered(tokens={"existingSecret": "mine"}, podMonitor={"enabled": True})
    assert not [name for kind, name in objects if kind == "Secret"]
    for pod in pods_of(objects).values():
        [volume] = [volume for volume in pod["spec"]["volumes"] if "secret" in volume]
        assert volume["secret"]["secretName"] == "mine"
    [endpoint] = objects["PodMonitor", "forebay"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "mine", "key": "prometheus"}}


@pytest.mark.parametrize(
    "own", [{"allow_anonymous": True}, {"auth_tokens_file": "/etc/mine"}, {"authenticator": "by-store"}]
)
def test_tier_with_its_own_auth_gets_no_chart_tokens(own):
    for tier, other in (("worker", "router"), ("router", "worker")):
        pods = pods_of(rendered(**{tier: {"settings": own}}))
        settings = settings_of_pod(f"forebay-{tier}", pods)
        assert {name: str(settings[name]) for name in own} == {name: str(value) for name, value in own.items()}
        assert settings["auth_tokens_file"] in (None, Path("/etc/mine"))
        required = settings_of_pod(f"forebay-{other}", pods)["auth_tokens_file"]
        assert required == Path("/etc/forebay/tokens", f"{other}s")
    both = rendered(worker={"settings": own}, router={"settings": own})
    assert not [name for kind, name in both if kind == "Secret"]


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_a_tier_is_labelled_and_ranked_as_its_owners_wish(tier):
    mine = {"podLabels": {"team": "orders"}, "serviceAccountName": "readers", "priorityClassName": "high"}
    pods = pods_of(rendered(**{tier: mine}))
    changed = pods.pop(f"forebay-{tier}")
    assert changed["metadata"]["labels"] == PODS[f"forebay-{tier}"]["metadata"]["labels"] | {"team": "orders"}
    assert (changed["spec"]["serviceAccountName"], changed["spec"]["priorityClassName"]) == ("readers", "high")
    assert changed["spec"]["automountServiceAccountToken"] is False
    [(other, pod)] = pods.items()
    assert pod == PODS[other]


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_a_tier_runs_where_and_with_what_its_owners_wish(tier):
    place = {
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "reads", "operator": "Exists"}],
    }
    resources = {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    pull = [{"name": "registry"}]
    objects = rendered(**{tier: {**place, "resources": resources}}, imagePullSecrets=pull, image={"tag": "7"})
    spec = pods_of(objects)[f"forebay-{tier}"]["spec"]
    [container] = spec["containers"]
    assert {key: spec[key] for key in place} == place
    assert spec["imagePullSecrets"] == pull
    assert container["image"] == "forebay:7"
    # Helm merges maps: what is not given stays as it is by default.
    for kind, given in resources.items():
        assert given.items() <= container["resources"][kind].items()


def test_service_and_volumes_follow_the_values():
    service = {"type": "LoadBalancer", "port": 8443, "annotations": {"internal": "true"}}
    objects = rendered(
        worker={"replicas": 5, "storage": {"size": "200Gi", "className": "fast"}},
        router={"replicas": 4, "service": service},
    )
    shown = objects["Service", "forebay"]
    assert (shown["spec"]["type"], shown["spec"]["ports"][0]["port"]) == ("LoadBalancer", 8443)
    assert shown["metadata"]["annotations"] == service["annotations"]
    workers = objects["StatefulSet", "forebay-worker"]["spec"]
    assert (workers["replicas"], objects["Deployment", "forebay-router"]["spec"]["replicas"]) == (5, 4)
    [claim] = workers["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "200Gi"}}


def test_network_policy_admits_routers_to_workers():
    """Other clients are admitted only if the values name them."""
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    objects = rendered(release="shop", networkPolicy={"enabled": True, "alsoFrom": [prometheus]})
    pods = pods_of(objects)
    policy = objects["NetworkPolicy", "shop-worker"]["spec"]

    def selected(selector: dict[str, Any]) -> list[str]:
        wanted = selector["matchLabels"].items()
        return [name for name, pod in pods.items() if wanted <= pod["metadata"]["labels"].items()]

    assert selected(policy["podSelector"]) == ["shop-worker"]
    [rule] = policy["ingress"]
    assert selected(rule["from"][0]["podSelector"]) == ["shop-router"]
    assert rule["from"][1:] == [prometheus]
    [container] = pods["shop-worker"]["spec"]["containers"]
    assert rule["ports"] == [{"port": container["ports"][0]["name"]}]
    several = rendered(networkPolicy={"enabled": True}, worker={"settings": {"processes": 4}})
    [rule] = several["NetworkPolicy", "forebay-worker"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": container["ports"][0]["containerPort"], "endPort": 8083}]


def allowed(policy: dict[str, Any], objects: Objects) -> list[str]:
    """The pods of a release that a NetworkPolicy selects, then those that it lets in."""
    labels = {name: pod["metadata"]["labels"] for name, pod in pods_of(objects).items()}
    labels |= {name: item["metadata"]["labels"] for (kind, name), item in objects.items() if kind == "Pod"}
    [rule] = policy["spec"]["ingress"]
    selectors = [policy["spec"]["podSelector"], *(peer.get("podSelector") for peer in rule["from"])]
    return [
        name
        for selector in selectors
        if selector
        for name in labels
        if selector["matchLabels"].items() <= labels[name].items()
    ]


def test_network_policy_admits_named_clients_to_routers():
    """The pod of `helm test` is admitted too, and no policy is made where nobody is named."""
    policy = EVERYTHING["NetworkPolicy", "forebay-router"]
    assert allowed(policy, EVERYTHING) == ["forebay-router", "forebay-test"]
    assert allowed(EVERYTHING["NetworkPolicy", "forebay-worker"], EVERYTHING) == [
        "forebay-worker",
        "forebay-router",
    ]
    [rule] = policy["spec"]["ingress"]
    assert CONTROLLER in rule["from"]
    assert PROMETHEUS in rule["from"]
    # By default nobody is named, and whoever has a token may read.
    assert ("NetworkPolicy", "forebay-router") not in rendered(networkPolicy={"enabled": True})


def test_routers_scale_with_their_load_within_bounds():
    scaling = {"enabled": True, "minReplicas": 3, "maxReplicas": 5, "targetCPUUtilizationPercentage": 60}
    objects = rendered(router={"autoscaling": scaling})
    scaler = objects["HorizontalPodAutoscaler", "forebay-router"]["spec"]
    target = scaler["scaleTargetRef"]
    deployment = objects[target["kind"], target["name"]]
    # Each upgrade would set it back.
    assert "replicas" not in deployment["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 5)
    [metric] = scaler["metrics"]
    assert metric["resource"]["target"]["averageUtilization"] == 60
    # Its unit: what is requested.
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert metric["resource"]["name"] in container["resources"]["requests"]


def test_ingress_leads_to_routers_and_passes_streams():
    ingress = EVERYTHING["Ingress", "forebay"]
    rules = {rule.get("host"): rule["http"]["paths"] for rule in ingress["spec"]["rules"]}
    assert list(rules) == ["a.example", "b.example"]
    for [path] in rules.values():
        service = path["backend"]["service"]
        ports = EVERYTHING["Service", service["name"]]["spec"]["ports"]
        assert service["port"]["name"] in [port["name"] for port in ports]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert "nginx.ingress.kubernetes.io/backend-protocol" not in ingress["metadata"]["annotations"]
    certificate = {"tls_certificate_file": "/a/tls.crt", "tls_key_file": "/a/tls.key"}
    [rule] = (objects := rendered(router={"ingress": {"enabled": True}, "settings": certificate}))[
        "Ingress", "forebay"
    ]["spec"]["rules"]
    assert "host" not in rule
    annotations = objects["Ingress", "forebay"]["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"


def test_helm_test_pod_has_the_token_and_authority():
    def variables(objects: Objects) -> dict[str, Any]:
        [container] = objects["Pod", "forebay-test"]["spec"]["containers"]
        return {
            variable["name"]: variable.get("value") or variable["valueFrom"]["secretKeyRef"]
            for variable in container.get("env", ())
        }

    token = {"name": "forebay-tokens", "key": "client"}
    assert variables(KUBERNETES) == {"FOREBAY_TOKEN": token}
    assert variables(EVERYTHING) == {"FOREBAY_TOKEN": token, "SSL_CERT_FILE": "/etc/forebay/ca/ca.crt"}
    assert variables(rendered(router={"settings": {"allow_anonymous": True}})) == {}
    mine = {"name": "mine", "key": "reader"}
    own = rendered(router={"settings": {"auth_tokens_file": "/etc/mine"}}, test={"tokenSecret": mine})
    assert variables(own) == {"FOREBAY_TOKEN": mine}
    assert ("Pod", "forebay-test") not in rendered(test={"enabled": False})
    # Neither scraped nor sent what is for routers.
    labels = KUBERNETES["Pod", "forebay-test"]["metadata"]["labels"]
    assert "app.kubernetes.io/part-of" not in labels


def test_a_gateways_route_leads_to_the_clients_address():
    route = yaml.safe_load((CHART.parent / "gateway.yaml").read_text())
    [rule] = route["spec"]["rules"]
    [backend] = rule["backendRefs"]
    [port] = rendered(release=backend["name"])["Service", backend["name"]]["spec"]["ports"]
    assert backend["port"] == port["port"]


def test_prometheus_operator_learns_where_and_what_to_scrape():
    monitored = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    objects = rendered(**monitored)
    assert objects.keys() - KUBERNETES.keys() == {("PodMonitor", "forebay"), ("PrometheusRule", "forebay")}
    monitor = objects["PodMonitor", "forebay"]["spec"]
    [endpoint] = monitor["podMetricsEndpoints"]
    [selector] = set(re.findall(r'\bjob=~"(.+)"', (CHART / "alerts.yml").read_text()))
    for pod in PODS.values():
        [container] = pod["spec"]["containers"]
        assert endpoint["port"] == container["ports"][0]["name"]
        assert re.fullmatch(selector, pod["metadata"]["labels"][monitor["jobLabel"]])
    # Of several applications at one Prometheus, each release asks for routers of its own.
    [relabeling] = endpoint["relabelings"]
    assert relabeling == {"action": "replace", "targetLabel": "application", "replacement": "forebay"}
    own = 'absent(forebay_router_ready{namespace="default",application="forebay"} == 1)'
    alerts = (CHART / "alerts.yml").read_text().replace("absent(forebay_router_ready == 1)", own)
    assert own in alerts
    assert objects["PrometheusRule", "forebay"]["spec"] == yaml.safe_load(alerts)


def test_pod_monitor_needs_authorization_with_tokens():
    """Where routers or workers require tokens, a PodMonitor without one is refused."""
    secret = {"credentials": {"name": "tokens", "key": "prometheus"}}
    values = {"router": {"settings": {"auth_tokens_file": "/etc/forebay/secrets/tokens/file"}}}
    with pytest.raises(HelmError, match=r"podMonitor\.authorization"):
        rendered(**values, podMonitor={"enabled": True})
    objects = rendered(**values, podMonitor={"enabled": True, "authorization": secret})
    [endpoint] = objects["PodMonitor", "forebay"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"] == secret


def test_workers_that_speak_https_are_probed_and_scraped_so():
    secret = {"ca": {"secret": {"name": "tls", "key": "ca.crt"}}, "serverName": "forebay-workers.default.svc"}
    objects = rendered(**ENCRYPTED, podMonitor={"enabled": True, "tlsConfig": secret})
    schemes = {
        name: {
            probe["httpGet"].get("scheme") for key, probe in pod["spec"]["containers"][0].items() if "Probe" in key
        }
        for name, pod in pods_of(objects).items()
    }
    assert schemes == {"forebay-worker": {"HTTPS"}, "forebay-router": {None}}
    [endpoint] = objects["PodMonitor", "forebay"]["spec"]["podMetricsEndpoints"]
    assert endpoint["tlsConfig"] == secret
    [relabeling] = [rule for rule in endpoint["relabelings"] if rule["targetLabel"] == "__scheme__"]
    label = PODS["forebay-worker"]["metadata"]["labels"]["app.kubernetes.io/name"]
    assert (relabeling["regex"], relabeling["replacement"]) == (label, "https")


@pytest.mark.parametrize("tier", ENCRYPTED)
def test_one_side_alone_does_not_speak_https(tier):
    with pytest.raises(HelmError, match="need each other"):
        rendered(**{tier: ENCRYPTED[tier]})
