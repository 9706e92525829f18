"""``forebay spark describe``: what is in a checkpoint, and a topology to paste."""

import json
import tomllib

import pytest
from click.testing import CliRunner

from forebay.errors import ForebayError
from forebay.spark_checkpoint.command import spark
from forebay.topology import parse_topology

STORES = {
    "aggregation-changelog": ("key-value", "RocksDBStateStoreProvider"),
    "windows-default": ("window", "HDFSBackedStateStoreProvider"),
    "ledger-changelog": ("key-value", "RocksDBStateStoreProvider"),
}


def describe(*arguments: str) -> str:
    outcome = CliRunner().invoke(spark, ["describe", *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.mark.parametrize("name", STORES)
def test_its_topology_can_be_pasted(written, name):
    kind, _ = STORES[name]
    text = describe(str(written.path(name)))
    snippets = [
        line
        for line in text.splitlines()
        if line.startswith(("[[", "name =", "partitions =", "kind =", "key =")) or "_ms = " in line
    ]
    topology = parse_topology({"application_id": "app", **tomllib.loads("\n".join(snippets))})
    assert {spec.kind for spec in topology.stores.values()} == {kind}
    assert {spec.partitions for spec in topology.stores.values()} == {2}


@pytest.mark.parametrize("name", STORES)
def test_json_names_provider_fields_and_positions(written, name):
    kind, provider = STORES[name]
    document = json.loads(describe("--json", str(written.path(name))))
    (operator,) = document["operators"]
    assert document["provider"] == provider
    assert {table["kind"] for table in operator["tables"]} == {kind}
    assert all(field["position"] for table in operator["tables"] for field in table["key"] + table["value"])


def test_buffers_are_shown_with_what_they_may_be(written):
    text = describe(str(written.path("aggregation-changelog")))
    for function in ("count", "avg or sum", "stddev or variance", "first", "last", "max"):
        assert f" {function} " in text


def test_a_join_is_refused_with_the_reason(written):
    text = describe(str(written.path("joined-default")))
    assert "cannot be served" in text
    assert "a join keeps rows that wait" in " ".join(text.split())


def test_what_is_no_checkpoint_is_an_error_with_the_remedy(tmp_path):
    with pytest.raises(ForebayError, match=r"is no checkpoint.*checkpointLocation"):
        describe(str(tmp_path))
