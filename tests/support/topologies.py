"""Topologies as text and as documents."""

import tomllib

from forebay.topology import Topology
from forebay.topology_file import parse_topology

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
