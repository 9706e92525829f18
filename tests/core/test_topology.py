import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import TopologyError
from forebay.partitioning import Murmur2Partitioner
from forebay.spark_state import SparkState, StateColumn
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import StoreSpec, Topology, load_topology, parse_topology

GOOD = """
application_id = "flights"

[[subtopology]]
name = "carriers"
partitions = 4

[[subtopology.store]]
name = "carrier_delays"
max_time_lag_ms = 0

[[subtopology.store]]
name = "departures"
kind = "window"
key = "int64"
value = "double"
window_size_ms = 60000
retention_ms = 3600000
topic = "departures"
partitioner = "unknown"

[[subtopology]]
name = "aircraft"
partitions = 2

[[subtopology.store]]
name = "tails"
kind = "session"
key = "bytes"
value = "bytes"
gap_ms = 1000
retention_ms = 2000

[[subtopology.store]]
name = "fleet"
kind = "versioned"
key = "json"
value = "string"
history_retention_ms = 5000
"""


SUB = '[[subtopology]]\nname = "s"\npartitions = 1\n'
STORE = '[[subtopology.store]]\nname = "delays"\n'
HEAD = 'application_id = "a"\n' + SUB


def topology(text: str = GOOD) -> Topology:
    return parse_topology(tomllib.loads(text))


def test_a_good_file_says_what_each_store_is(tmp_path: Path) -> None:
    path = tmp_path / "topology.toml"
    path.write_text(GOOD)

    loaded = load_topology(path)

    assert loaded.application_id == "flights"
    assert [(sub.ordinal, sub.name, sub.partitions) for sub in loaded.subtopologies] == [
        (0, "carriers", 4),
        (1, "aircraft", 2),
    ]
    assert list(loaded.stores) == ["carrier_delays", "departures", "tails", "fleet"]
    assert loaded.stores["departures"] == StoreSpec(
        name="departures",
        kind="window",
        key="int64",
        value="double",
        partitioner="unknown",
        topic="departures",
        partitions=4,
        window_size_ms=60000,
        retention_ms=3600000,
    )


def test_a_store_that_names_only_itself_gets_the_defaults() -> None:
    spec = topology().stores["carrier_delays"]
    assert (spec.kind, spec.key, spec.value, spec.partitioner) == ("key-value", "string", "json", "murmur2")
    assert spec.topic == "flights-carrier_delays-changelog"
    assert (spec.max_record_lag, spec.max_time_lag_ms, spec.max_age_ms) == (None, 0, None)


def test_a_store_finds_its_codecs_key_layout_and_partitioner() -> None:
    spec = topology().stores["departures"]
    assert (spec.key_codec.name, spec.value_codec.name) == ("int64", "double")
    assert (spec.stored_keys.layout.name, spec.stored_keys.codec) == ("window", spec.key_codec)
    assert spec.stream_partitioner is None
    assert isinstance(topology().stores["carrier_delays"].stream_partitioner, Murmur2Partitioner)


def test_tasks_are_every_partition_of_every_subtopology() -> None:
    flights = topology()
    assert [str(task) for task in flights.tasks] == ["0_0", "0_1", "0_2", "0_3", "1_0", "1_1"]
    assert [spec.name for spec in flights.stores_of(TaskId(1, 1))] == ["tails", "fleet"]
    assert list(flights.topic_partitions(TaskId(0, 3))) == [
        TopicPartition("flights-carrier_delays-changelog", 3),
        TopicPartition("departures", 3),
    ]
    assert flights.ordinal_by_store == {"carrier_delays": 0, "departures": 0, "tails": 1, "fleet": 1}


def test_fingerprint_ignores_how_a_topology_is_written() -> None:
    """Comments and defaults that are written out do not change it."""
    fingerprint = topology().fingerprint
    spelt_out = GOOD.replace(
        'name = "carrier_delays"', 'kind = "key-value"\nname = "carrier_delays"\nkey="string"'
    )
    # Workers of two versions compare theirs: the default of a field that only one of them has must not matter.
    assert fingerprint == "584900b520ec"
    assert topology().fingerprint == fingerprint
    assert topology(spelt_out).fingerprint == fingerprint
    assert topology("# a comment\n" + GOOD).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('application_id = "flights"', 'application_id = "trains"'),
        ("partitions = 4", "partitions = 5"),
        ('name = "fleet"', 'name = "armada"'),
        ('key = "int64"', 'key = "int32"'),
        ('value = "double"', 'value = "int64"'),
        ('partitioner = "unknown"', 'partitioner = "murmur2"'),
        ('topic = "departures"', 'topic = "arrivals"'),
        ("window_size_ms = 60000", "window_size_ms = 60001"),
        ("retention_ms = 2000", "retention_ms = 2001"),
        ("gap_ms = 1000", 'gap_ms = 1000\nsupplier = "memory"'),
        ("gap_ms = 1000", "gap_ms = 1001"),
        ("history_retention_ms = 5000", "history_retention_ms = 5001"),
    ],
)
def test_the_fingerprint_changes_with_what_is_stored(old: str, new: str) -> None:
    assert old in GOOD
    assert topology(GOOD.replace(old, new)).fingerprint != topology().fingerprint


def test_fingerprint_changes_with_subtopology_order() -> None:
    head, carriers, aircraft = GOOD.split("[[subtopology]]")
    swapped = "[[subtopology]]".join([head, aircraft, carriers])
    assert topology(swapped).fingerprint != topology().fingerprint


@pytest.mark.parametrize("name", ["carrier_delays", "departures", "tails", "fleet"])
def test_a_store_specification_survives_its_document(name: str) -> None:
    spec = topology().stores[name]
    document = spec.document()
    assert None not in document.values()
    assert StoreSpec.from_document(document) == spec
    assert StoreSpec.from_document({**document, "from_a_later_version": 1}) == spec


def test_every_field_of_a_store_survives_its_document() -> None:
    fields = [field.name for field in dataclasses.fields(StoreSpec) if field.name != "spark_state"]
    filled: dict[str, Any] = {name: index for index, name in enumerate(fields, 1)}
    assert StoreSpec.from_document(filled).document() == filled


def test_spark_state_is_not_part_of_the_fingerprint() -> None:
    """The declared state of a query concerns the store's writer alone."""
    declared = topology(
        HEAD + STORE + '[subtopology.store.spark_state]\noperator = 2\nvariable = "seen"\n'
        'on_removal = "keep"\nfields = [{ name = "n", position = 1, function = "count" }, '
        '{ name = "raw", position = "0.2" }]\n'
    )
    spec, plain = declared.stores["delays"], topology(HEAD + STORE)
    columns = (StateColumn("n", (1,), "count"), StateColumn("raw", (0, 2)))
    assert spec.spark_state == SparkState(2, "seen", columns, "keep")
    assert declared.fingerprint == plain.fingerprint
    assert spec.document() == plain.stores["delays"].document()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("spark_state = 5", ["spark_state of store 'delays'", "not a table"]),
        ("spark_state = { operators = 1 }", ["'operators'", "it may have fields, on_removal, operator, variable"]),
        ("spark_state = { operator = -1 }", ["operator", "-1"]),
        ('spark_state = { on_removal = "drop" }', ["on_removal", "'drop'", "keep, delete"]),
        ("spark_state = { fields = 1 }", ["fields = 1", "list of tables"]),
        ("spark_state = { fields = [{ position = 1 }] }", ["'name'", "None"]),
        ('spark_state = { fields = [{ name = "n", position = "a" }] }', ["'position'", "'a'", "describe"]),
        ('spark_state = { fields = [{ name = "n", position = 0, function = 1 }] }', ["function = 1"]),
        (
            'spark_state = { fields = [{ name = "n", position = 0 }, { name = "n", position = 1 }] }',
            ["two fields 'n'"],
        ),
        ("external = true\nspark_state = {}", ["spark_state", "not external"]),
        ('value = "string"\nspark_state = {}', ["spark_state", "JSON values"]),
    ],
)
def test_a_declaration_of_state_that_cannot_be_is_refused(state: str, said: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        topology(HEAD + STORE + state)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("latest_by = 5", ["latest_by = 5", "name of a column"]),
        ('latest_by = ""', ["name of a column"]),
        ('latest_by = "n"\nexternal = true', ["store 'delays'", "only key-value stores", "the sink writes"]),
        ('latest_by = "n"\naccept_uncompacted = true', ["without external, accept_uncompacted or spark_state"]),
        ('latest_by = "n"\nkind = "versioned"\nhistory_retention_ms = 5', ["only key-value stores"]),
    ],
)
def test_orders_that_cannot_be_are_refused(more: str, said: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        topology(HEAD + STORE + more)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["the topology", "application_id"]),
        ('application_id = "a b"\n' + SUB + STORE, ["application_id", "'a b'", "letters, digits"]),
        ("application_id = 5\n" + SUB + STORE, ["application_id", "5"]),
        ('application_id = "a"', ["[[subtopology]]", "add at least one"]),
        ('application_id = "a"\nsubtopology = []', ["[[subtopology]]", "add at least one"]),
        ('application_id = "a"\nsubtopology = "s"', ["[[subtopology]]", "add at least one"]),
        (
            'application_id = "a"\nstores = 1\n' + SUB + STORE,
            ["the topology", "'stores'", "it may have application_id"],
        ),
        (HEAD, ["sub-topology 0", "'s'", "[[subtopology.store]]", "add at least one"]),
        (HEAD.replace("partitions = 1", "") + STORE, ["sub-topology 0", "'partitions'", "at least 1"]),
        (HEAD.replace("= 1", "= 0") + STORE, ["sub-topology 0", "'partitions'", "at least 1", "0"]),
        (HEAD.replace("= 1", "= 65537") + STORE, ["sub-topology 0", "partitions = 65537", "more than 65536"]),
        (HEAD.replace("= 1", "= true") + STORE, ["sub-topology 0", "'partitions'", "True"]),
        (HEAD.replace("= 1", "= 1.5") + STORE, ["sub-topology 0", "'partitions'", "1.5"]),
        (HEAD.replace('"s"', '"-s"') + STORE, ["sub-topology 0", "'name'", "'-s'", "not beginning with"]),
        (HEAD + "replicas = 2\n" + STORE, ["sub-topology 0", "'replicas'", "it may have name, partitions, store"]),
        (HEAD + "[[subtopology.store]]\n", ["a store of sub-topology 0", "'name'"]),
        (HEAD + STORE.replace("delays", "../etc"), ["a store of sub-topology 0", "'../etc'"]),
        (HEAD + STORE.replace("delays", "d" * 201), ["a store of sub-topology 0", "letters, digits"]),
        (HEAD + STORE + "retension_ms = 1", ["store 'delays'", "'retension_ms'", "it may have"]),
        (HEAD + STORE + 'kind = "windowed"', ["store 'delays'", "kind", "'windowed'", "window, session"]),
        (HEAD + STORE + 'key = "uuid"', ["store 'delays'", "key", "'uuid'", "string, int32"]),
        (HEAD + STORE + 'value = "avro"', ["store 'delays'", "value", "'avro'", "json, string"]),
        (HEAD + STORE + "key = 1", ["store 'delays'", "key = 1"]),
        (HEAD + STORE + 'partitioner = "crc32"', ["'crc32'", "'murmur2'", "'unknown'", "forebay.partitioners"]),
        (
            HEAD + STORE + 'supplier = "redis"',
            ["store 'delays'", "'redis'", "'rocksdb'", "'memory'", "forebay.stores"],
        ),
        (HEAD + STORE + 'topic = "a/b"', ["store 'delays'", "'a/b'", "topic"]),
        (HEAD + STORE + 'topic = ""', ["store 'delays'", "''", "topic"]),
        (HEAD + STORE + f'topic = "{"t" * 250}"', ["store 'delays'", "topic"]),
        (HEAD + STORE + "topic = 7", ["store 'delays'", "7", "topic"]),
        (HEAD + STORE + 'kind = "window"\nretention_ms = 5', ["store 'delays'", "'window_size_ms'", "at least 1"]),
        (HEAD + STORE + 'kind = "window"\nwindow_size_ms = 5', ["store 'delays'", "'retention_ms'"]),
        (
            HEAD + STORE + 'kind = "session"\nretention_ms = 5\ngap_ms = 0',
            ["store 'delays'", "'gap_ms'", "at least 1"],
        ),
        (HEAD + STORE + 'kind = "versioned"', ["store 'delays'", "'history_retention_ms'"]),
        (HEAD + STORE + "window_size_ms = 5", ["store 'delays'", "'key-value'", "'window_size_ms'", "remove it"]),
        (HEAD + STORE + "max_age_ms = -1", ["store 'delays'", "'max_age_ms'", "at least 0", "-1"]),
        (HEAD + STORE + 'max_record_lag = "5"', ["store 'delays'", "'max_record_lag'", "'5'"]),
        (HEAD + STORE + STORE, ["store name", "'delays'", "used twice", "its own"]),
        (HEAD + STORE + SUB + STORE, ["store name", "'delays'", "used twice"]),
        (
            HEAD + STORE + 'topic = "t"\n' + STORE.replace("delays", "x") + 'topic = "t"',
            ["topic", "'t'", "used twice"],
        ),
    ],
)
def test_bad_file_is_refused_with_place_and_remedy(tmp_path: Path, text: str, said: list[str]) -> None:
    path = tmp_path / "topology.toml"
    path.write_text(text)
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    for part in [str(path), *said]:
        assert part in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"nowhere\.toml cannot be read"):
        load_topology(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("content", [b"a = = 1", b"\xff\xfe", b"[[subtopology]"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "topology.toml"
    path.write_bytes(content)
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_topology(tmp_path):
    """Editors on Windows write one."""
    path = tmp_path / "topology.toml"
    text = 'application_id = "a"\n[[subtopology]]\nname = "s"\npartitions = 1\n[[subtopology.store]]\nname = "x"\n'
    path.write_text(text, encoding="utf-8-sig")
    assert list(load_topology(path).stores) == ["x"]
