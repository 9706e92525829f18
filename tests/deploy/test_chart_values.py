"""Each of the chart's values, changed, changes the place in a manifest that it is for, and no other manifest."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml
from deploy.generate import SCHEMA

from tests.support.chart import CHART, Objects, rendered

Place = tuple[str | int, ...]
"""Kind and name of an object, then the way to the place in it."""


class Case(NamedTuple):
    """Another value than the default, and what is then where."""

    value: Any
    shown: dict[Place, Any]
    beside: Mapping[str, Any] = MappingProxyType({})
    """The other values that it needs to mean something, nested as in the file."""


WORKERS, ROUTERS = ("StatefulSet", "forebay-worker"), ("Deployment", "forebay-router")
TEST, SERVICE, INGRESS, SCALER = (
    *(("Pod", "forebay-test"), ("Service", "forebay")),
    *(("Ingress", "forebay"), ("HorizontalPodAutoscaler", "forebay-router")),
)
WORKER_POLICY, ROUTER_POLICY = (("NetworkPolicy", f"forebay-{tier}") for tier in ("worker", "router"))
MONITOR, RULE = (("PodMonitor", "forebay"), ("PrometheusRule", "forebay"))
ENDPOINT: Place = (*MONITOR, "spec", "podMetricsEndpoints", 0)
PODS: tuple[Place, ...] = ((*WORKERS, "spec", "template", "spec"), (*ROUTERS, "spec", "template", "spec"))
ALL_PODS: tuple[Place, ...] = (*PODS, (*TEST, "spec"))
FROM: Place = ("spec", "ingress", 0, "from")


def each(places: tuple[Place, ...], *way: str | int, shown: Any) -> dict[Place, Any]:
    return {(*place, *way): shown for place in places}


def first_container(*way: str | int, shown: Any) -> dict[Place, Any]:
    return each(ALL_PODS, "containers", 0, *way, shown=shown)


def tier(name: str, object_: Place) -> dict[str, Case]:
    """What both tiers have."""
    template: Place = (*object_, "spec", "template")
    pod, labels = (*template, "spec"), (*template, "metadata")
    cases = {
        "replicas": Case(7, {(*object_, "spec", "replicas"): 7}),
        "resources": Case(
            {"limits": {"memory": "9Gi"}}, {(*pod, "containers", 0, "resources", "limits", "memory"): "9Gi"}
        ),
        "podAnnotations": Case({"note": "mine"}, {(*labels, "annotations", "note"): "mine"}),
        "podLabels": Case({"team": "orders"}, {(*labels, "labels", "team"): "orders"}),
        "serviceAccountName": Case("readers", {(*pod, "serviceAccountName"): "readers"}),
        "priorityClassName": Case("high", {(*pod, "priorityClassName"): "high"}),
        "nodeSelector": Case({"disk": "nvme"}, {(*pod, "nodeSelector"): {"disk": "nvme"}}),
        "tolerations": Case([{"key": "reads"}], {(*pod, "tolerations"): [{"key": "reads"}]}),
    }
    return {f"{name}.{value}": case for value, case in cases.items()}


def ingress(value: Any, *way: str | int, shown: Any) -> Case:
    return Case(value, {(*INGRESS, *way): shown}, {"router": {"ingress": {"enabled": True}}})


def scaler(value: Any, *way: str | int) -> Case:
    return Case(value, {(*SCALER, "spec", *way): value}, {"router": {"autoscaling": {"enabled": True}}})


def monitor(value: Any, *place: str | int) -> Case:
    return Case(value, {tuple(place): value}, {"podMonitor": {"enabled": True}})


def policies(value: list[dict[str, Any]], shown: dict[Place, Any]) -> Case:
    others = {"enabled": True, "routersFrom": [{"podSelector": {}}]}
    return Case(value, shown, {"networkPolicy": others})


PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
TOKEN: Place = (*TEST, "spec", "containers", 0, "env", 0, "valueFrom", "secretKeyRef")
CASES: dict[str, Case] = {
    "image.repository": Case("mine", first_container("image", shown="mine:7"), {"image": {"tag": "7"}}),
    "image.tag": Case("8", first_container("image", shown="forebay:8")),
    "image.pullPolicy": Case("Always", first_container("imagePullPolicy", shown="Always")),
    "imagePullSecrets": Case(
        [{"name": "registry"}], each(ALL_PODS, "imagePullSecrets", shown=[{"name": "registry"}])
    ),
    "topology": Case(
        "# mine",
        {
            ("ConfigMap", "forebay-topology", "data", "topology.toml"): "# mine\n",
            # By which a new one restarts the workers.
            (*WORKERS, "spec", "template", "metadata", "annotations", "checksum/topology"): hashlib.sha256(
                b"# mine"
            ).hexdigest(),
        },
    ),
    "secrets": Case(
        ["broker"],
        {
            **each(PODS, "volumes", -1, "secret", "secretName", shown="broker"),
            **each(PODS, "containers", 0, "volumeMounts", -1, "mountPath", shown="/etc/forebay/secrets/broker"),
        },
    ),
    "tokens.existingSecret": Case(
        "mine",
        {
            **each(PODS, "volumes", -1, "secret", "secretName", shown="mine"),
            (*TOKEN, "name"): "mine",
            ("Secret", "forebay-tokens"): None,
        },
    ),
    **tier("worker", WORKERS),
    "worker.storage.size": Case(
        "9Gi", {(*WORKERS, "spec", "volumeClaimTemplates", 0, "spec", "resources", "requests", "storage"): "9Gi"}
    ),
    "worker.storage.className": Case(
        "fast", {(*WORKERS, "spec", "volumeClaimTemplates", 0, "spec", "storageClassName"): "fast"}
    ),
    **tier("router", ROUTERS),
    "router.service.type": Case("LoadBalancer", {(*SERVICE, "spec", "type"): "LoadBalancer"}),
    "router.service.port": Case(
        8443,
        {
            (*SERVICE, "spec", "ports", 0, "port"): 8443,
            (*TEST, "spec", "containers", 0, "args", 3): "http://forebay.default.svc:8443",
        },
    ),
    "router.service.annotations": Case(
        {"internal": "true"}, {(*SERVICE, "metadata", "annotations", "internal"): "true"}
    ),
    "router.autoscaling.enabled": Case(True, {(*SCALER, "kind"): SCALER[0], (*ROUTERS, "spec", "replicas"): None}),
    "router.autoscaling.minReplicas": scaler(3, "minReplicas"),
    "router.autoscaling.maxReplicas": scaler(5, "maxReplicas"),
    "router.autoscaling.targetCPUUtilizationPercentage": scaler(
        60, "metrics", 0, "resource", "target", "averageUtilization"
    ),
    "router.ingress.enabled": Case(True, {(*INGRESS, "kind"): INGRESS[0]}),
    "router.ingress.className": ingress("nginx", "spec", "ingressClassName", shown="nginx"),
    "router.ingress.annotations": ingress({"mine": "1"}, "metadata", "annotations", "mine", shown="1"),
    "router.ingress.hosts": ingress(["a.example"], "spec", "rules", 0, "host", shown="a.example"),
    "router.ingress.tls": ingress([{"secretName": "tls"}], "spec", "tls", shown=[{"secretName": "tls"}]),
    "networkPolicy.enabled": Case(True, {(*WORKER_POLICY, "kind"): "NetworkPolicy"}),
    "networkPolicy.alsoFrom": policies(
        [PEER], {(*WORKER_POLICY, *FROM, 1): PEER, (*ROUTER_POLICY, *FROM, 1): PEER}
    ),
    "networkPolicy.routersFrom": policies([PEER], {(*ROUTER_POLICY, *FROM, 0): PEER}),
    "test.enabled": Case(False, {(*TEST, "kind"): None}),
    "test.arguments": Case(["--standbys", "1"], {(*TEST, "spec", "containers", 0, "args", 4): "--standbys"}),
    "test.tokenSecret.name": Case("mine", {(*TOKEN, "name"): "mine"}, {"test": {"tokenSecret": {"key": "k"}}}),
    "test.tokenSecret.key": Case("reader", {(*TOKEN, "key"): "reader"}, {"test": {"tokenSecret": {"name": "n"}}}),
    "test.caSecret.name": Case(
        "ca", {(*TEST, "spec", "volumes", 0, "secret", "secretName"): "ca"}, {"test": {"caSecret": {"key": "k"}}}
    ),
    "test.caSecret.key": Case(
        "ca.crt",
        {(*TEST, "spec", "containers", 0, "env", 1, "value"): "/etc/forebay/ca/ca.crt"},
        {"test": {"caSecret": {"name": "n"}}},
    ),
    "podMonitor.enabled": Case(True, {(*MONITOR, "kind"): MONITOR[0]}),
    "podMonitor.interval": monitor("30s", *ENDPOINT, "interval"),
    "podMonitor.labels": monitor({"release": "p"}, *MONITOR, "metadata", "labels"),
    "podMonitor.authorization": monitor({"credentials": {"name": "n", "key": "k"}}, *ENDPOINT, "authorization"),
    "podMonitor.tlsConfig": monitor({"serverName": "forebay"}, *ENDPOINT, "tlsConfig"),
    "prometheusRule.enabled": Case(True, {(*RULE, "kind"): RULE[0]}),
    "prometheusRule.labels": Case(
        {"release": "p"}, {(*RULE, "metadata", "labels"): {"release": "p"}}, {"prometheusRule": {"enabled": True}}
    ),
}
ELSEWHERE = {
    "worker.settings": "test_every_setting_arrives walks them.",
    "router.settings": "test_every_setting_arrives walks them.",
    "global": "Charts around this one share values there, of which it reads none.",
}


def leaves(schema: dict[str, Any], name: str = "") -> Iterator[str]:
    """The names of all values, whole where they are not the chart's own to divide."""
    if name in ELSEWHERE or "properties" not in schema:
        yield name
        return
    for part, inner in schema["properties"].items():
        yield from leaves(inner, f"{name}.{part}" if name else part)


def nested(name: str, value: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    """The values beside, with one more."""
    first, _, rest = name.partition(".")
    return {**beside, first: nested(rest, value, beside.get(first, {})) if rest else value}


def held(objects: Objects, place: Place) -> Any:
    """What a place holds, None if there is none."""
    found: Any = objects.get((str(place[0]), str(place[1])))
    for step in place[2:]:
        try:
            found = found[step]
        except (LookupError, TypeError):
            return None
    return found


def changed(before: Objects, after: Objects) -> set[tuple[str, str]]:
    """The objects that differ by more than tokens, which are random."""

    def text(item: dict[str, Any] | None) -> Any:
        return item and {part: value for part, value in item.items() if part != "data" or item["kind"] != "Secret"}

    return {key for key in before.keys() | after.keys() if text(before.get(key)) != text(after.get(key))}


def test_every_value_has_a_case():
    names = set(leaves(json.loads(SCHEMA.read_text())))
    assert names == CASES.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_in_the_file_that_explains_it(name):
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    for part in name.split("."):
        # Whoever sets one of an optional map gives it whole.
        if found == {}:
            break
        assert part in found
        found = found[part]


@pytest.mark.parametrize("name", CASES)
def test_a_value_changes_what_it_is_for(name):
    value, shown, beside = CASES[name]
    before, after = rendered(**beside), rendered(**nested(name, value, beside))
    assert {place: held(after, place) for place in shown} == shown
    assert not [place for place, expected in shown.items() if held(before, place) == expected]
    assert changed(before, after) == {place[:2] for place in shown}
