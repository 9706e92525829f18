"""The committed OpenAPI documents match the code."""

import pytest

from openapi.generate import HERE, router_document, text_of, worker_document


@pytest.mark.parametrize(("name", "make"), [("worker", worker_document), ("router", router_document)])
def test_the_committed_document_is_current(name, make):
    assert (HERE / f"{name}.json").read_text() == text_of(make()), "run scripts/openapi"


@pytest.mark.parametrize("make", [worker_document, router_document])
def test_every_error_is_documented_as_a_problem(make):
    for path, operations in make()["paths"].items():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status != "200":
                    assert list(response["content"]) == ["application/problem+json"], (path, status)


@pytest.mark.parametrize("make", [worker_document, router_document])
def test_only_liveness_readiness_and_identity_are_open(make):
    """Any other route may require a token."""
    document = make()
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            wanted = path not in ("/livez", "/readyz", "/v1/identity")
            assert ("security" in operation) is wanted, path
            assert {"401", "403"} <= operation["responses"].keys() or not wanted, path
