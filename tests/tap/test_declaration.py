"""What ``forebay spark describe`` proposes can be declared as it is."""

import tomllib

import pytest

from forebay.topology_file import parse_topology
from forebay_tap.mapping import TableMapping
from forebay_tap.spark_checkpoint.description import describe_operator, topology_snippet

CHECKPOINTS = (
    "aggregation-default",
    "windows-changelog",
    "sessions-format2",
    "pandas_state-default",
    "ledger-changelog",
    "distinct_within-default",
)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_proposed_store_fits_its_state(written, name):
    operator = written.checkpoint(name).operator(0, 0)
    for table in describe_operator(operator).tables:
        snippet = topology_snippet("proposed", 0, table, 60_000).replace("gap_ms = 0 ", "gap_ms = 30_000 ")
        topology = parse_topology(tomllib.loads(f'application_id = "a"\n{snippet}'))
        mapping = TableMapping(topology.stores["proposed"], operator)
        assert mapping.table == table
