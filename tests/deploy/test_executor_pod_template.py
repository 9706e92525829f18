"""The pod template of Spark's executors is Kubernetes', and its router is started as the code has it."""

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from forebay.listen_addresses import UnixAddress
from tests.support.command_lines import settings_of

TEMPLATE = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "spark-executor-pod-template.yaml").read_text())
OLDEST = "1.29"
"""The first version in which containers that always restart are sidecars without a feature gate."""


def sidecar() -> dict[str, Any]:
    [router] = TEMPLATE["spec"]["initContainers"]
    return router


def settings() -> dict[str, Any]:
    environment = {variable["name"]: variable.get("value", "a") for variable in sidecar()["env"]}
    return settings_of(sidecar()["args"], environment)


@pytest.mark.parametrize("version", [OLDEST, "1.37"])
def test_kubernetes_takes_it(version):
    kubernetes_validate.validate(TEMPLATE, version, strict=True)
    misspelt = copy.deepcopy(TEMPLATE)
    misspelt["spec"]["initContainers"][0]["restartPolicies"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolicies"):
        kubernetes_validate.validate(misspelt, version, strict=True)


def test_it_is_a_sidecar_of_sparks_container():
    assert sidecar()["restartPolicy"] == "Always"
    [executor] = TEMPLATE["spec"]["containers"]
    assert executor.keys() == {"name", "volumeMounts"}


def test_both_containers_share_the_sockets_directory_and_group():
    [listen] = settings()["listen"]
    assert isinstance(listen, UnixAddress)
    [executor] = TEMPLATE["spec"]["containers"]
    for container in (sidecar(), executor):
        mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
        assert mounts["forebay-socket"] == listen.path.parent
    assert settings()["socket_group"] == str(TEMPLATE["spec"]["securityContext"]["fsGroup"])


def test_the_token_is_where_the_setting_says():
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in sidecar()["volumeMounts"]}
    [volume] = [volume for volume in TEMPLATE["spec"]["volumes"] if volume["name"] == "forebay-tokens"]
    [item] = volume["secret"]["items"]
    assert settings()["worker_token_file"] == mounts["forebay-tokens"] / item["path"]


def test_router_meets_restricted_pod_security():
    assert sidecar()["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert {kind for volume in TEMPLATE["spec"]["volumes"] for kind in volume} <= {"name", "emptyDir", "secret"}


def test_it_ends_within_the_time_that_kubernetes_gives():
    assert settings()["drain_ms"] < settings()["shutdown_timeout_ms"] < 30_000
