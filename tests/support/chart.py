"""The Helm chart as Kubernetes gets it."""

from __future__ import annotations

from typing import Any

import yaml
from deploy.generate import SCHEMA
from helm_python.chart import Chart

CHART = SCHEMA.parent

Objects = dict[tuple[str, str], dict[str, Any]]


def rendered(release: str = "forebay", **values: Any) -> Objects:
    """The chart's objects by kind and name, as ``helm template`` makes them."""
    texts = Chart.load(CHART).render(values, name=release)
    items = [item for path, text in texts.items() if path.endswith(".yaml") for item in yaml.safe_load_all(text)]
    return {(item["kind"], item["metadata"]["name"]): item for item in items if item}
