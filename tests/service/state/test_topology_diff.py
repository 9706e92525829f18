"""What ``forebay topology diff`` says of each change in the table of docs/topology.md."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_worker.state.topology_command import Outcome, diff, topology_diff

OLD = """
application_id = "app"

[[subtopology]]
name = "first"
partitions = 4

[[subtopology.store]]
name = "orders"
{orders}

[[subtopology]]
name = "second"
partitions = 4

[[subtopology.store]]
name = "totals"
"""


def topology(text: str = OLD, orders: str = "") -> Topology:
    return parse_topology(tomllib.loads(text.format(orders=orders)))


def outcomes(old: Topology, new: Topology) -> dict[str, Any]:
    return {one.store: one for one in topology_diff(old, new)}


WINDOW = 'kind = "window"\nwindow_size_ms = {size}\nretention_ms = 100000\n{more}'


TAPPED = """[subtopology.store.spark_state]
fields = [{{name = "{name}", position = 0}}]
"""


@pytest.mark.parametrize(
    ("before", "after", "outcome", "why"),
    [
        ("", "max_age_ms = 5", Outcome.KEPT, ""),
        ("", 'topic = "other"', Outcome.REBUILT, "topic 'app-orders-changelog' instead of 'other'"),
        ("", 'value = "string"', Outcome.REBUILT, "value 'json' instead of 'string'"),
        (
            "external = true",
            "external = true\nrecord_headers = true",
            Outcome.REBUILT,
            "record_headers None instead of True",
        ),
        ("", 'key = "int64"', Outcome.REBUILT, "key 'string' instead of 'int64'"),
        ("", 'supplier = "memory"', Outcome.REBUILT, "forebay state rm"),
        ("", 'latest_by = "lsn"', Outcome.REBUILT, "kind 'key-value' instead of 'latest'"),
        ("", 'partitioner = "unknown"', Outcome.MISREAD, "another partitioner"),
        (
            WINDOW.format(size=5, more=""),
            WINDOW.format(size=6, more=""),
            Outcome.MISREAD,
            "another window_size_ms",
        ),
        (
            WINDOW.format(size=5, more=""),
            WINDOW.format(size=5, more="timestamp_after_max_ms = 9"),
            Outcome.REBUILT,
            "timestamp_after_max_ms None instead of 9",
        ),
        ("", TAPPED.format(name="n"), Outcome.COPIED, "copies the query's whole state again"),
        (TAPPED.format(name="n"), TAPPED.format(name="m"), Outcome.COPIED, "by another spark_state.fields"),
        (
            TAPPED.format(name="n"),
            TAPPED.format(name="n") + 'on_removal = "keep"',
            Outcome.COPIED,
            "by another spark_state.on_removal",
        ),
        (TAPPED.format(name="n"), "", Outcome.KEPT, ""),
    ],
)
def test_changed_field_has_its_documented_outcome(before, after, outcome, why):
    found = outcomes(topology(orders=before), topology(orders=after))
    assert found["orders"].outcome is outcome
    assert why in (found["orders"].reason or "")
    assert found["orders"].changed
    assert (found["totals"].outcome, found["totals"].changed) == (Outcome.KEPT, ())


def test_store_of_another_ordinal_is_moved():
    """A renamed store is new, and the one of its old name is left."""
    head, first, second = OLD.format(orders="").split("[[subtopology]]\n")
    swapped = f"{head}[[subtopology]]\n{second}[[subtopology]]\n{first}"
    found = outcomes(topology(), topology(swapped))
    assert {name: (one.outcome, one.old_ordinal, one.new_ordinal) for name, one in found.items()} == {
        "orders": (Outcome.MOVED, 0, 1),
        "totals": (Outcome.MOVED, 1, 0),
    }
    renamed = outcomes(topology(), topology(OLD.replace('"totals"', '"sums"')))
    assert {name: one.outcome for name, one in renamed.items()} == {
        "sums": Outcome.NEW,
        "totals": Outcome.LEFT,
        "orders": Outcome.KEPT,
    }


def test_another_partition_count_is_refused():
    """With another topic the store is rebuilt."""
    fewer = OLD.replace("partitions = 4", "partitions = 2", 1)
    assert outcomes(topology(), topology(fewer))["orders"].outcome is Outcome.REFUSED
    assert "its log has 4 partitions" in outcomes(topology(), topology(fewer))["orders"].reason
    other = outcomes(topology(), topology(fewer, orders='topic = "other"'))
    assert other["orders"].outcome is Outcome.REBUILT


def test_another_application_shares_nothing():
    found = outcomes(topology(), topology(OLD.replace('"app"', '"other"').replace('"totals"', '"sums"')))
    assert {name: one.outcome for name, one in found.items()} == {
        "orders": Outcome.REBUILT,
        "sums": Outcome.REBUILT,
        "totals": Outcome.LEFT,
    }


@pytest.mark.parametrize(
    ("after", "status"),
    [(OLD, 0), (OLD.replace("partitions = 4", "partitions = 2"), 1), (OLD + 'partitioner = "unknown"\n', 1)],
)
def test_refused_or_misread_store_ends_the_command_with_1(tmp_path: Path, after: str, status: int) -> None:
    files = [tmp_path / name for name in ("old.toml", "new.toml")]
    for path, text in zip(files, (OLD, after), strict=True):
        path.write_text(text.format(orders=""))
    assert CliRunner().invoke(diff, list(map(str, files))).exit_code == status
