"""The queries of the dashboard that reads stores find rows at a real router; Grafana itself is not run."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml

from tests.support.cluster import Cluster, running_cluster

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "stores.json").read_text())
SOURCES = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "stores.yml").read_text())["datasources"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
PANELS = {panel["type"]: panel for panel in DASHBOARD["panels"]}
[TABLE], [GAUGE] = PANELS["table"]["targets"], PANELS["gauge"]["targets"]
STORES = VARIABLES["store"]["query"]["infinityQuery"]
QUERIES = {"table": TABLE, "gauge": GAUGE, "variable": STORES}
_VARIABLE = re.compile(r"\$\{(\w+)(:percentencode)?\}")
_MEMBER = re.compile(r'"(\w+)":([\w.]+)')
_KIND = re.compile(r'(\w+)\.#\(kind=="([\w-]+)"\)#')


def interpolated(text: str, values: Mapping[str, str]) -> str:
    """A text with the dashboard's variables replaced, as Grafana does."""
    return _VARIABLE.sub(lambda found: quote(values[found[1]], safe="") if found[2] else values[found[1]], text)


def selected(document: Any, path: str) -> Any:
    """What a path of GJSON, by which the data source selects, finds: the part of its syntax that is used here."""
    if path.startswith("{"):
        return {name: selected(document, member) for name, member in _MEMBER.findall(path)}
    if found := _KIND.fullmatch(path):
        return [item for item in document[found[1]] if item["kind"] == found[2]]
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def rows(query: dict[str, Any], **values: str) -> list[dict[str, Any]]:
    """The rows that a query finds, which the data source interpolates in its address and root alone."""
    params = {param["key"]: interpolated(param["value"], values) for param in query["url_options"]["params"]}
    answer = httpx.request(
        query["url_options"]["method"], interpolated(query["url"], values), params=params or None
    )
    assert answer.status_code == 200, answer.text
    root = selected(answer.json(), interpolated(query["root_selector"], values))
    items = root if isinstance(root, list) else [root]
    return [{column["text"]: selected(item, column["selector"]) for column in query["columns"]} for item in items]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("dashboard")) as cluster:
        fill(cluster)
        cluster.start_worker()
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        yield f"http://{router}"


def fill(cluster: Cluster) -> None:
    cluster.put("counts", {b"UA": b'{"flights":58665,"at":{"gate":7}}', b"a/b ?": b"7"})


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_what_the_data_source_needs(name):
    [source] = SOURCES
    query = QUERIES[name]
    assert query["datasource"] == {"type": source["type"], "uid": source["uid"]}
    assert source["type"] == "yesoreyeram-infinity-datasource"
    kind = {part: query[part] for part in ("type", "source", "parser", "format")}
    # Only the backend's parser knows these selectors, and replaces variables in them.
    assert kind == {"type": "json", "source": "url", "parser": "backend", "format": "table"}
    assert query["refId"]
    for column in query["columns"]:
        assert column.keys() == {"selector", "text", "type"}
        assert column["type"] in {"string", "number"}
        assert "$" not in column["selector"] + column["text"]


def test_a_dashboard_has_the_shape_of_one():
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time", "refresh"} <= DASHBOARD.keys()
    places = []
    for panel in DASHBOARD["panels"]:
        assert {
            "id",
            "type",
            "title",
            "gridPos",
            "datasource",
            "fieldConfig",
            "options",
            "targets",
        } <= panel.keys()
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        places.append(range(place["y"], place["y"] + place["h"]))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert not set(places[0]) & set(places[1])
    used = {found[0] for found in _VARIABLE.findall(json.dumps(DASHBOARD["panels"]))}
    assert used == VARIABLES.keys()
    # It may go to no other hosts, with a token or without.
    [source] = SOURCES
    assert source["jsonData"]["allowedHosts"] == [VARIABLES["router"]["query"]]


def test_the_gauges_overrides_are_of_its_columns():
    names = {override["matcher"]["options"] for override in PANELS["gauge"]["fieldConfig"]["overrides"]}
    assert names == {column["text"] for column in GAUGE["columns"]} - {"value"}


def test_the_stores_to_choose_from_are_those_that_can_be_listed(router):
    assert [row["name"] for row in rows(STORES, router=router)] == ["counts", "numbers", "pairs"]


def test_the_table_has_the_entries_of_a_store(router):
    assert rows(TABLE, router=router, store="counts") == [
        {"key": "UA", "value": {"flights": 58665, "at": {"gate": 7}}},
        {"key": "a/b ?", "value": 7},
    ]


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("UA", "value.flights", 58665),
        ("UA", "value.at.gate", 7),
        ("a/b ?", "value", 7),
        ("UA", "value.nope", None),
    ],
)
def test_the_gauge_has_a_number_of_one_key_with_its_lag(router, key, field, value):
    [row] = rows(GAUGE, router=router, store="counts", key=key, field=field)
    assert (row["value"], row["record lag"]) == (value, 0)
    assert 0 <= row["time lag"] < 60_000
    assert 0 <= row["age"] < 600_000
