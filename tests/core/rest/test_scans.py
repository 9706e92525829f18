"""Which entries are within a list's times, and how partitions' pages become one list."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.rest import scans
from forebay.rest.parameters import ReadParameters
from forebay.rest.scans import SCAN_ROUTES, ScanPage, make_scan, merge, window_end
from forebay.topology import parse_topology

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


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    keys=st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=40),
    partitions=st.integers(1, 4),
    size=st.integers(1, 7),
    at_once=st.integers(1, 12),
    reverse=st.booleans(),
)
def test_pages_of_any_partitions_become_one_list_in_order(keys, partitions, size, at_once, reverse):
    """Pages that end at different keys, such as where values are large in one partition alone."""
    rest = [sorted(keys[p::partitions], reverse=reverse) for p in range(partitions)]
    pages = [ScanPage(more=True) for _ in rest]
    listed: list[bytes] = []
    bound: bytes | None = b""
    while bound is not None:
        for page, left in zip(pages, rest, strict=True):
            if page.more and not page.keys:
                page.keys, left[:] = left[: size + len(left) % 3], left[size + len(left) % 3 :]
                page.items, page.more, page.last = list(page.keys), bool(left), (page.keys or [b""])[-1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scans, "_MERGED_AT_ONCE", at_once)
            patch.setattr(scans, "_LEAST_OF_A_PAGE", 1)
            bound = window_end(pages, reverse=reverse)
        items, key_at = merge([page.take_to(bound, reverse=reverse) for page in pages], reverse=reverse)
        assert len(items) <= max(at_once, partitions)
        assert [key_at(place) for place in range(len(items))] == items
        listed += items
    assert listed == sorted(keys, reverse=reverse)
