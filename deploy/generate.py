"""Generates the schema of the Helm chart's values; the tiers' settings in it come from the table of settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forebay.settings import SETTINGS, Setting, Tier

SCHEMA = Path(__file__).parent / "chart" / "values.schema.json"
SET_BY_THE_CHART: dict[Tier, frozenset[str]] = {
    "worker": frozenset({"topology", "state_dir", "listen", "socket_group", "advertise", "rack"}),
    "router": frozenset({"listen", "socket_group", "seeds", "rack"}),
}

_STRING = {"type": "string"}
_MAPPING = {"type": "object"}
_STRINGS = {"type": "array", "items": _STRING}
_MAPPINGS = {"type": "array", "items": _MAPPING}
_COUNT = {"type": "integer", "minimum": 1}
_SWITCH = {"type": "boolean"}


def values_schema() -> dict[str, Any]:
    """A JSON Schema that names every value, so that Helm refuses a misspelt one."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_object(
            image=_object(
                repository=_STRING, tag=_STRING, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}
            ),
            imagePullSecrets={"type": "array", "items": _MAPPING},
            topology=_STRING | {"minLength": 1},
            secrets={"type": "array", "items": _STRING},
            tokens=_object(existingSecret=_STRING),
            worker=_tier("worker", storage=_object(size=_STRING, className=_STRING)),
            router=_tier(
                "router",
                service=_object(type=_STRING, port=_COUNT, annotations=_MAPPING),
                autoscaling=_object(
                    enabled=_SWITCH,
                    minReplicas=_COUNT,
                    maxReplicas=_COUNT,
                    targetCPUUtilizationPercentage=_COUNT,
                ),
                ingress=_object(
                    enabled=_SWITCH,
                    className=_STRING,
                    annotations={"type": "object", "additionalProperties": _STRING},
                    hosts=_STRINGS,
                    tls=_MAPPINGS,
                ),
            ),
            podMonitor=_object(
                enabled={"type": "boolean"},
                interval=_STRING,
                labels=_MAPPING,
                authorization=_MAPPING,
                tlsConfig=_MAPPING,
            ),
            networkPolicy=_object(enabled=_SWITCH, alsoFrom=_MAPPINGS, routersFrom=_MAPPINGS),
            test=_object(enabled=_SWITCH, arguments=_STRINGS, tokenSecret=_KEY, caSecret=_KEY),
            prometheusRule=_object(enabled={"type": "boolean"}, labels=_MAPPING),
            # Helm gives every chart the values that are shared with charts around it.
            **{"global": _MAPPING},
        ),
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


_KEY = _object(name=_STRING, key=_STRING)
"""Where in a secret something is."""


def _tier(tier: Tier, **own: Any) -> dict[str, Any]:
    return _object(
        replicas=_COUNT,
        settings=_settings(tier),
        resources=_MAPPING,
        podAnnotations=_MAPPING,
        podLabels=_MAPPING,
        serviceAccountName=_STRING,
        priorityClassName=_STRING,
        nodeSelector=_MAPPING,
        tolerations={"type": "array", "items": _MAPPING},
        **own,
    )


def _settings(tier: Tier) -> dict[str, Any]:
    left = [item for item in SETTINGS if tier in item.tiers and item.name not in SET_BY_THE_CHART[tier]]
    return {
        **_object(**{item.name: _setting(item) for item in left}),
        "required": [item.name for item in left if item.required],
    }


def _setting(setting: Setting) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": setting.help}
    match setting.kind:
        case "integer":
            schema |= {"type": "integer", "minimum": setting.least}
            if setting.most is not None:
                schema["maximum"] = setting.most
        case "boolean":
            schema |= {"type": "boolean"}
        case "choice":
            schema |= {"enum": list(setting.choices)}
        case "names" | "addresses" | "listeners":
            schema |= {"type": ["array", "string"], "items": _STRING}
        case _:
            schema |= _STRING
    if setting.name in ("changelog", "group"):
        # A SQLite log serves one machine, hence no set of pods.
        schema["pattern"] = "^kafka://"
    if setting.default not in (None, ()):
        schema["default"] = setting.default
    return schema


def text_of(schema: dict[str, Any]) -> str:
    """A schema as it is committed."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the schema."""
    SCHEMA.write_text(text_of(values_schema()))


if __name__ == "__main__":
    main()
