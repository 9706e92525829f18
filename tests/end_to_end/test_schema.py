"""Live processes' answers to requests generated from their OpenAPI documents match the documents."""

import json
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
from tests.support.cluster import Cluster, running_cluster

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
OPAQUE = ["cursor", "min_position", "as_of", "from", "to", "prefix", "partition", "headers"]
"""Parameters that hardly any value made up by chance is right for."""
BOUNDS = ["max_record_lag", "max_time_lag_ms", "max_age_ms", "require_active"]
TIMEOUT_MS = 10_000
"""Every replica is well, so whatever is asked is answered or refused in this time."""
EXAMPLES = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
EVENTS = {"value", "absent", "lag", "problem", "reset"}

load_all_checks()


def operations(*, streams: bool) -> list[tuple[str, str, str]]:
    return [
        (tier, method.upper(), path)
        for tier, document in DOCUMENTS.items()
        for path, methods in document["paths"].items()
        for method in methods
        if path.endswith("/changes") is streams
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


def undocumented(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> set[str]:
    """Members of objects anywhere in a value of which its schema, or one of ``schemas`` below it, says nothing."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    choices = [
        choice for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())) if choice != {"type": "null"}
    ]
    if choices:
        return min((undocumented(value, choice, schemas) for choice in choices), key=len)
    if isinstance(value, list):
        items = schema.get("items") or {}
        return {name for item in value for name in undocumented(item, items, schemas)}
    # Of a problem further members depend on its type.
    if not isinstance(value, dict) or "properties" not in schema or schema.get("title") == "Problem":
        return set()
    known = schema["properties"]
    below = {
        f"{name}.{inner}"
        for name in value.keys() & known
        for inner in undocumented(value[name], known[name], schemas)
    }
    return below | (value.keys() - known)


def cases(tier: str, method: str, path: str) -> st.SearchStrategy[Case]:
    """Right and wrong requests, mostly of stores and keys that there are: else nothing more would be checked."""
    operation = schemathesis.openapi.from_dict(DOCUMENTS[tier])[path][method]
    fitting = FITTING.get(path.rpartition("/")[2], "counts")
    stores, keys = st.just(fitting) | st.sampled_from([*STORES, None]), st.sampled_from([*KEYS, None])

    def fitted(case: Case, store: str | None, key: str | None, opaque: bool) -> Case:
        for name, known in (("store", store), ("key", key)):
            if known is not None and name in case.path_parameters:
                case.path_parameters[name] = known
        if not opaque:
            for name in OPAQUE:
                case.query.pop(name, None)
        if isinstance(case.query.get("wait_ms"), int):
            # As documented after a moment as after half a minute.
            case.query["wait_ms"] = min(case.query["wait_ms"], 50)
        if isinstance(case.query.get("timeout_ms"), int) and case.query["timeout_ms"] > 0:
            # A time-out of the client's own choice shows nothing.
            case.query["timeout_ms"] = TIMEOUT_MS
        # A list is refused then, as documented.
        case.query.pop("doubted", None)
        return case

    generated = [operation.as_strategy(mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
    return st.builds(fitted, st.one_of(generated), stores, keys, st.booleans())


@pytest.mark.parametrize(("tier", "method", "path"), operations(streams=False))
def test_answers_are_as_documented(served, tier, method, path):
    url = f"http://{served[tier]}"

    with requests.Session() as session:

        @EXAMPLES
        @given(case=cases(tier, method, path))
        def check(case: Case) -> None:
            response = case.call(url, session=session, timeout=30)
            assert response.status_code < 500, response.text
            case.validate_response(
                response, checks=[status_code_conformance, content_type_conformance, response_schema_conformance]
            )
            documented = DOCUMENTS[tier]["paths"][path][method.lower()]["responses"]["200"]["content"]
            if response.status_code == 200 and "application/json" in documented:
                schemas = DOCUMENTS[tier]["components"]["schemas"]
                assert undocumented(response.json(), documented["application/json"]["schema"], schemas) == set()

        check()


@pytest.mark.parametrize(("tier", "method", "path"), operations(streams=True))
def test_streams_begin_as_documented(served, tier, method, path):
    documented = DOCUMENTS[tier]["paths"][path][method.lower()]["responses"]

    with requests.Session() as session:

        @EXAMPLES
        @given(case=cases(tier, method, path), bounded=st.integers(0, 9))
        def check(case: Case, bounded: int) -> None:
            if bounded:
                for name in BOUNDS:
                    # A router tries for the whole time to meet them.
                    case.query.pop(name, None)
            elif isinstance(case.query.get("timeout_ms"), int):
                case.query["timeout_ms"] = 200
            arguments = case.as_transport_kwargs(base_url=f"http://{served[tier]}")
            with session.request(**arguments, stream=True, timeout=30) as response:
                assert response.status_code < 500, response.text
                assert str(response.status_code) in documented
                if response.status_code != 200:
                    assert response.headers["content-type"] == "application/problem+json"
                    return
                assert response.headers["content-type"] == "text/event-stream"
                name, document = first_event(response)
                assert name in EVENTS
                if name == "problem":
                    assert document["status"] < 500
                elif name == "reset":
                    assert document["partitions"]
                else:
                    assert {"partition", "position", "role", "host", "lag"} <= document.keys()

        check()


def first_event(response: requests.Response) -> tuple[str, dict[str, Any]]:
    fields: dict[bytes, bytes] = {}
    for line in response.iter_lines(chunk_size=1):
        name, _, value = line.partition(b": ")
        if line:
            fields[name] = value
        elif b"data" in fields:
            return fields[b"event"].decode(), json.loads(fields[b"data"])
    raise AssertionError("the stream ended before its first event")
