"""Which entries are within a list's times."""

import pytest

from forebay.topology_file import parse_topology
from forebay.wire.parameters import ReadParameters
from forebay.wire.scans import SCAN_ROUTES, make_scan

STORES = parse_topology(
    {
        "application_id": "a",
        "subtopology": [
            {
                "name": "s",
                "partitions": 1,
                "store": [
                    {"name": "windows", "kind": "window", "window_size_ms": 1_000, "retention_ms": 1_000_000},
                    {"name": "sessions", "kind": "session", "gap_ms": 1_000, "retention_ms": 1_000_000},
                    {"name": "versions", "kind": "versioned", "history_retention_ms": 1_000_000},
                ],
            }
        ],
    }
).stores


@pytest.mark.parametrize(
    ("items", "times", "within"),
    [
        ("windows", (5_000,), [(5_000, 6_000), (5_000, 5_001), (4_000, 5_001)]),
        ("sessions", (5_000, 4_000), [(5_000, 6_000), (4_500, 4_600), (3_000, 4_001)]),
        ("versions", (5_000,), [(5_000, 5_001)]),
    ],
)
def test_ranges_of_times_are_half_open(items, times, within):
    beyond = {
        "windows": [(4_000, 5_000), (5_001, 6_000)],
        "sessions": [(3_000, 4_000), (5_001, 6_000)],
        "versions": [(4_000, 5_000), (5_001, 6_000)],
    }[items]
    spec = STORES[items]
    stored = spec.stored_keys.stored(b"k", *times)

    def passes(from_ms: int, to_ms: int, *, keyed: bool) -> bool:
        route = next(route for route in SCAN_ROUTES if route.items == items and route.keyed is keyed)
        parameters = ReadParameters(start=b"%d" % from_ms, end=b"%d" % to_ms)
        scan = make_scan(route, spec, b"k" if keyed else None, parameters)
        found = scan.selected([(stored, b"1")], None) if scan.start <= stored < scan.end else []
        return bool(found)

    for keyed in (True, False) if items != "versions" else (True,):
        assert all(passes(*bounds, keyed=keyed) for bounds in within)
        assert not any(passes(*bounds, keyed=keyed) for bounds in beyond)
