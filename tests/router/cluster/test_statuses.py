"""A worker's status is adopted as a whole, or not at all."""

import copy
from typing import Any

import pytest

from forebay_router.cluster.statuses import requiring_status

STATUS: dict[str, Any] = {
    "application_id": "app",
    "host": "h:1",
    "process_id": "p",
    "incarnation": 1,
    "sequence": 2,
    "generation": {"incarnation": 1, "generation": 1},
    "rack": None,
    "ceiling": {"max_record_lag": None, "max_time_lag_ms": 5, "max_age_ms": None},
    "acceptable_recovery_lag": 10,
    "tasks": [
        {"store": "s", "partition": 0, "role": "active", "record_lag": 0, "time_lag_ms": None, "age_ms": None}
    ],
}


def test_a_workers_status_is_accepted():
    list(requiring_status(STATUS))
    list(requiring_status({**STATUS, "tasks": []}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tasks", 0, "record_lag"), "x"),
        (("tasks", 0, "time_lag_ms"), -1),
        (("tasks", 0, "age_ms"), True),
        (("tasks", 0, "role"), "leader"),
        (("tasks", 0, "partition"), "0"),
        (("tasks", 0, "store"), None),
        (("tasks", 0), None),
        (("tasks",), None),
        (("sequence",), "2"),
        (("generation",), []),
        (("generation", "generation"), None),
        (("ceiling", "max_time_lag_ms"), "5"),
        (("acceptable_recovery_lag",), 1.5),
        (("host",), "nowhere"),
        (("rack",), 3),
        (("application_id",), None),
    ],
)
def test_anything_else_is_refused_as_a_whole(path, value):
    status = copy.deepcopy(STATUS)
    place: Any = status
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=r"."):
        list(requiring_status(status))


@pytest.mark.parametrize("document", [None, [], "x", {}])
def test_no_status_at_all_is_refused(document):
    with pytest.raises(ValueError, match=r"."):
        list(requiring_status(document))
