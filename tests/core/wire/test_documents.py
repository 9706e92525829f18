import json
from typing import Any

import pytest
from msgspec import Struct

from forebay.codecs.keys import KEY_CODECS
from forebay.errors import NotReady, UnknownStore
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import Generation, HostInfo, StreamsMetadataState, cluster_map
from forebay.task_ids import TopicPartition
from forebay.wire.answer_schemas.stores import (
    cluster_map_of,
    key_metadata_answer,
    map_answer,
    store_metadata_answer,
    stores_answer,
)
from forebay.wire.answers import json_answer

SPEC = StoreSpec("tails", "key-value", "int32", "json", "murmur2", "tails-log", 1)
ONE, TWO = HostInfo("one", 1), HostInfo("two", 2)
HELD = frozenset({TopicPartition("tails-log", 0)})


def state() -> StreamsMetadataState:
    map_ = cluster_map(Generation(5, 6), [SPEC], {ONE: HELD}, {TWO: HELD}, {ONE: frozenset({"p"})})
    return StreamsMetadataState({"tails": SPEC}, map_)


def written(answer: Struct) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json_answer(answer).body)
    return document


def test_stores_are_listed_so_that_they_can_be_read_back() -> None:
    document = written(stores_answer("flights", "abc", [SPEC]))
    assert (document["application_id"], document["topology"]) == ("flights", "abc")
    assert [StoreSpec.from_document(item) for item in document["stores"]] == [SPEC]


def test_metadata_names_every_host_and_the_generation() -> None:
    document = written(map_answer("flights", "abc", state()))
    assert (document["incarnation"], document["generation"]) == (5, 6)
    assert [host["host"] for host in document["hosts"]] == ["one:1", "two:2"]
    assert [host["process_ids"] for host in document["hosts"]] == [["p"], []]


def test_metadata_before_the_first_assignment_names_nobody() -> None:
    document = written(map_answer("flights", "abc", StreamsMetadataState({"tails": SPEC})))
    assert (document["generation"], document["hosts"]) == (0, [])


def test_a_map_of_another_version_is_read_and_no_other_document() -> None:
    document = written(map_answer("flights", "abc", state()))
    for host in document["hosts"]:
        del host["process_ids"]
    assert {host.process_ids for host in cluster_map_of({**document, "later": 1}).hosts} == {frozenset()}
    with pytest.raises(ValueError, match="generation"):
        cluster_map_of({**document, "generation": "6"})


def test_a_stores_metadata_tells_active_from_standby() -> None:
    document = written(store_metadata_answer("tails", state()))
    assert [host["host"] for host in document["active"]] == ["one:1"]
    assert [host["host"] for host in document["standby"]] == ["two:2"]
    with pytest.raises(UnknownStore):
        store_metadata_answer("nonesuch", state())
    with pytest.raises(NotReady):
        store_metadata_answer("tails", StreamsMetadataState({"tails": SPEC}))


def test_a_keys_metadata_shows_the_key_as_json() -> None:
    codec = KEY_CODECS["int32"]
    plain = codec.from_json(-7)
    document = written(key_metadata_answer("tails", codec, plain, state().key_query_metadata("tails", plain)))
    assert document == {
        "store": "tails",
        "key": -7,
        "active_host": "one:1",
        "standby_hosts": ["two:2"],
        "partition": 0,
    }
