from pathlib import Path

import pytest

from forebay.errors import TopologyError
from forebay.store_spec import StoreSpec
from forebay.topology_file import load_topology
from tests.support.topologies import GOOD, HEAD, STORE, SUB, topology


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('knd = "window"', "has an unknown field 'knd'; did you mean 'kind'?"),
        ("zzz = 1", "has an unknown field 'zzz'; it may have accept_misplaced, "),
        ('kind = "window"', "needs 'window_size_ms', a whole number of at least 1; it is missing."),
        ('kind = "window"\nwindow_size_ms = 0', "at least 1; it has 0."),
        (
            "block_size_bytes = 512",
            "'block_size_bytes', a whole number of at least 1024 and at most 1048576; it has 512.",
        ),
        (
            "bloom_bits_per_key = 31",
            "needs 'bloom_bits_per_key', a whole number of at least 0 and at most 30; it has 31.",
        ),
        ('compression = "lz5"', "compression"),
        ('latest_by = "n"\nbloom_bits_per_key = 9', "read by ranges, which no filter helps"),
        ('supplier = "memory"\ncompression = "zstd"', "has 'compression', which only stores of RocksDB have"),
    ],
)
def test_a_field_that_is_misspelt_or_missing_is_named(more: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topology(HEAD + STORE + more)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("spark_state = 5", ["store 'delays'", "'spark_state', a table; it has 5"]),
        ("spark_state = { operators = 1 }", ["'operators'", "did you mean 'operator'?"]),
        ("spark_state = { operator = -1 }", ["operator", "-1"]),
        ('spark_state = { on_removal = "drop" }', ["on_removal", "'drop'", "keep, delete"]),
        (
            "spark_state = { fields = 1 }",
            ["spark_state of store 'delays'", "'fields'", "list of tables", "it has 1"],
        ),
        ("spark_state = { fields = [{ position = 1 }] }", ["'name'", "it is missing"]),
        ('spark_state = { fields = [{ name = "n", position = "a" }] }', ["'position'", "'a'", "describe"]),
        (
            'spark_state = { fields = [{ name = "n", position = 0, function = 1 }] }',
            ["'function'", "the name of an aggregate", "it has 1"],
        ),
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
        ("latest_by = 5", ["'latest_by'", "name of a column", "it has 5"]),
        ('latest_by = ""', ["name of a column"]),
        ('latest_by = "n"\nexternal = true', ["store 'delays'", "only key-value stores", "the sink writes"]),
        (
            'latest_by = "n"\naccept_uncompacted = true',
            ["without external, accept_uncompacted, ttl_ms or spark_state"],
        ),
        ('latest_by = "n"\nspark_state = {}', ["without external, accept_uncompacted, ttl_ms or spark_state"]),
        ('latest_by = "n"\nttl_ms = 5', ["without external, accept_uncompacted, ttl_ms or spark_state"]),
        ("ttl_ms = 5\naccept_uncompacted = true", ["store 'delays'", "remove accept_uncompacted"]),
        ("ttl_ms = 0", ["ttl_ms"]),
        ('key = "avro"', ["store 'delays'", "key = 'avro'", "external = true and without ttl_ms"]),
        ('key = "avro"\nexternal = true\nttl_ms = 5', ["key = 'avro'", "without ttl_ms"]),
        ('key = "avro"\nexternal = true\nkind = "versioned"\nhistory_retention_ms = 5', ["only key-value stores"]),
        ('key = "avro"\nexternal = true\npartitioner = "murmur2"', ["partitioner is 'unknown'", "remove it"]),
        ('key = "avro"\nexternal = true\nbloom_bits_per_key = 9', ["'bloom_bits_per_key'", "keys of avro"]),
        ('ttl_ms = 5\nkind = "versioned"\nhistory_retention_ms = 5', ["has no 'ttl_ms'"]),
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
        (
            HEAD.replace("partitions", "global = true\npartitions")
            + STORE
            + 'kind = "session"\ngap_ms = 1\nretention_ms = 1',
            ["sub-topology 0", "is global", "only key-value stores", "'delays' to another sub-topology"],
        ),
        ('application_id = "a b"\n' + SUB + STORE, ["application_id", "'a b'", "letters, digits"]),
        ("application_id = 5\n" + SUB + STORE, ["application_id", "5"]),
        ('application_id = "a"', ["the topology", "'subtopology'", "at least one [[subtopology]]"]),
        (
            'application_id = "a"\nsubtopology = []',
            ["the topology", "'subtopology'", "at least one [[subtopology]]"],
        ),
        (
            'application_id = "a"\nsubtopology = "s"',
            ["the topology", "'subtopology'", "at least one [[subtopology]]"],
        ),
        (
            'application_id = "a"\nstores = 1\n' + SUB + STORE,
            ["the topology", "'stores'", "it may have application_id"],
        ),
        (HEAD, ["sub-topology 0 's'", "'store'", "at least one [[subtopology.store]]"]),
        (HEAD.replace("partitions = 1", "") + STORE, ["sub-topology 0", "'partitions'", "at least 1"]),
        (HEAD.replace("= 1", "= 0") + STORE, ["sub-topology 0", "'partitions'", "at least 1", "0"]),
        (
            HEAD.replace("= 1", "= 65537") + STORE,
            ["sub-topology 0 's'", "'partitions'", "at most 65536", "it has 65537"],
        ),
        (HEAD.replace("= 1", "= true") + STORE, ["sub-topology 0", "'partitions'", "True"]),
        (HEAD.replace("= 1", "= 1.5") + STORE, ["sub-topology 0", "'partitions'", "1.5"]),
        (HEAD.replace('"s"', '"-s"') + STORE, ["sub-topology 0", "'name'", "'-s'", "not beginning with"]),
        (
            HEAD + "replicas = 2\n" + STORE,
            ["sub-topology 0", "'replicas'", "it may have global, name, "],
        ),
        (HEAD + "[[subtopology.store]]\n", ["a store of sub-topology 0", "'name'"]),
        (
            HEAD + STORE.replace("delays", "../etc"),
            ["store '../etc'", "'name'", "letters, digits", "it has '../etc'"],
        ),
        (HEAD + STORE.replace("delays", "d" * 201), ["store 'ddd", "'name'", "letters, digits"]),
        (HEAD + STORE + "retension_ms = 1", ["store 'delays'", "'retension_ms'", "did you mean 'retention_ms'?"]),
        (HEAD + STORE + 'kind = "windowed"', ["store 'delays'", "kind", "'windowed'", "window, session"]),
        (HEAD + STORE + 'key = "uuid"', ["store 'delays'", "key", "'uuid'", "string, int32"]),
        (HEAD + STORE + 'value = "xml"', ["store 'delays'", "value", "'xml'", "json, string"]),
        (HEAD + STORE + "key = 1", ["store 'delays'", "'key'", "string, int32", "it has 1"]),
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


@pytest.mark.parametrize("codec", ["avro", "protobuf", "json-schema"])
def test_only_stores_that_others_write_have_values_of_a_registry(codec: str) -> None:
    """The sink writes none."""
    with pytest.raises(
        TopologyError, match=f"store 'delays' has value = '{codec}', which only stores with external"
    ):
        topology(HEAD + STORE + f'value = "{codec}"')
    assert topology(HEAD + STORE + f'external = true\nvalue = "{codec}"').stores["delays"].value == codec
