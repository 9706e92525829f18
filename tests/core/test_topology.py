import pytest

from forebay.store_spec import SparkState, StateColumn
from forebay.task_ids import TaskId, TopicPartition
from tests.support.topologies import GOOD, HEAD, STORE, topology


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
