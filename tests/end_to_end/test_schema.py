"""Live processes' answers to requests generated from their OpenAPI documents match the documents."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from openapi.generate import router_document, worker_document
from tests.cluster import Cluster, running_cluster

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "all"
partitions = 2

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "numbers"
key = "int64"

[[subtopology.store]]
name = "anywhere"
partitioner = "unknown"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 100000000

[[subtopology.store]]
name = "visits"
kind = "session"
gap_ms = 1000
retention_ms = 100000000

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 100000000
"""
DOCUMENTS = {"worker": worker_document(), "router": router_document()}
STORES = ["counts", "numbers", "anywhere", "hours", "visits", "prices"]
FITTING = {"windows": "hours", "sessions": "visits", "versions": "prices"}
"""The store that a list route reads, by its last segment; others read ``counts``."""
KEYS = ["k1", "7", "nobody"]
OPAQUE = ["cursor", "min_position", "as_of", "from", "to", "prefix", "partition"]
"""Parameters that hardly any value made up by chance is right for."""
UNAVAILABLE = {503, 504}
"""What a right request may meet: a replica that is not ready, or a time-out of its own choice."""

load_all_checks()


def operations() -> list[tuple[str, str, str]]:
    # A stream of changes has no end that could be waited for.
    return [
        (tier, method.upper(), path)
        for tier, document in DOCUMENTS.items()
        for path, methods in document["paths"].items()
        for method in methods
        if not path.endswith("/changes")
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_cluster(tmp_path_factory.mktemp("schema"), topology_text=TOPOLOGY) as cluster:
        write(cluster)
        (worker,) = cluster.start_workers(1)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        yield {"worker": worker, "router": router}


def write(cluster: Cluster) -> None:
    at = (1000).to_bytes(8, "big")
    cluster.put("counts", {b"k1": b"1"})
    cluster.put("numbers", {(7).to_bytes(8, "big"): b"7"})
    cluster.put("hours", {b"k1" + at: b"1"})
    cluster.put("visits", {b"k1" + at + at: b"1"})
    cluster.put("prices", {b"k1": b"1"})
    spec = cluster.topology.stores["anywhere"]
    cluster.log.append(spec, {1: [(b"k1", b"1", 1)]}, "anywhere", 1)


def undocumented(value: Any, schema: dict[str, Any]) -> set[str]:
    """Members of objects anywhere in a value of which its schema says nothing."""
    if "oneOf" in schema:
        return min((undocumented(value, choice) for choice in schema["oneOf"]), key=len)
    if isinstance(value, list):
        return {name for item in value for name in undocumented(item, schema.get("items", {}))}
    if not isinstance(value, dict) or "properties" not in schema:
        return set()
    known = schema["properties"]
    below = {
        f"{name}.{inner}" for name in value.keys() & known for inner in undocumented(value[name], known[name])
    }
    return below | (value.keys() - known)


@pytest.mark.parametrize(("tier", "method", "path"), operations())
def test_answers_are_as_documented(served, tier, method, path):
    operation = schemathesis.openapi.from_dict(DOCUMENTS[tier])[path][method]
    cases = st.one_of(operation.as_strategy(mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
    url = f"http://{served[tier]}"

    fitting = FITTING.get(path.rpartition("/")[2], "counts")
    stores = st.just(fitting) | st.sampled_from([*STORES, None])

    with requests.Session() as session:

        @settings(
            max_examples=12,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, store=stores, key=st.sampled_from([*KEYS, None]), opaque=st.booleans())
        def check(case: Case, store: str | None, key: str | None, opaque: bool) -> None:
            # Generated names are mostly unknown, and then nothing else is checked.
            for name, known in (("store", store), ("key", key)):
                if known is not None and name in case.path_parameters:
                    case.path_parameters[name] = known
            if not opaque:
                for name in OPAQUE:
                    case.query.pop(name, None)
            if isinstance(case.query.get("wait_ms"), int):
                # As documented after half a second as after half a minute.
                case.query["wait_ms"] = min(case.query["wait_ms"], 500)
            response = case.call(url, session=session, timeout=30)
            assert response.status_code < 500 or response.status_code in UNAVAILABLE, response.text
            case.validate_response(
                response, checks=[status_code_conformance, content_type_conformance, response_schema_conformance]
            )
            documented = DOCUMENTS[tier]["paths"][path][method.lower()]["responses"]["200"]["content"]
            if response.status_code == 200 and "application/json" in documented:
                assert undocumented(response.json(), documented["application/json"]["schema"]) == set()

        check()
