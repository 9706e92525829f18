"""A worker's status is adopted as a whole, or not at all."""

import copy
import json
from typing import Any

import pytest

from forebay.streams_metadata import HostInfo
from forebay_router.cluster.discovery import read_status

STATUS: dict[str, Any] = {
    "tier": "worker",
    "application_id": "app",
    "host": "h:1",
    "process_id": "p",
    "incarnation": 1,
    "sequence": 2,
    "generation": {"incarnation": 1, "generation": 1},
    "rack": "r",
    "ceiling": {"max_record_lag": None, "max_time_lag_ms": 5, "max_age_ms": None},
    "acceptable_recovery_lag": 10,
    "num_standby_replicas": 1,
    "tasks": [
        {"store": "s", "partition": 0, "role": "active", "record_lag": 0, "time_lag_ms": None, "age_ms": None}
    ],
}


def test_a_workers_status_is_accepted():
    host, status = read_status(json.dumps(STATUS).encode())
    assert (host, status.sequence, status.tasks[0].role) == (HostInfo("h", 1), 2, "active")
    assert read_status(json.dumps({**STATUS, "tasks": []}).encode())[1].tasks == []


def test_members_of_a_later_version_are_ignored():
    [row] = STATUS["tasks"]
    later = {**STATUS, "later": [1], "tasks": [{**row, "later": {}}]}
    assert read_status(json.dumps(later).encode()) == read_status(json.dumps(STATUS).encode())


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
    with pytest.raises(ValueError, match=rf"{path[-1] or path[0]}|nowhere"):
        read_status(json.dumps(status).encode())


@pytest.mark.parametrize("name", ["store", "partition", "role", "record_lag", "time_lag_ms", "age_ms"])
def test_a_row_without_a_member_is_refused_by_name(name):
    status = copy.deepcopy(STATUS)
    del status["tasks"][0][name]
    with pytest.raises(ValueError, match=rf"`{name}` - at `\$\.tasks\[0\]`"):
        read_status(json.dumps(status).encode())


@pytest.mark.parametrize("document", [None, [], "x", {}])
def test_no_status_at_all_is_refused(document):
    with pytest.raises(ValueError, match=r"."):
        read_status(json.dumps(document).encode())


def test_what_is_no_json_is_refused():
    with pytest.raises(ValueError, match="malformed"):
        read_status(b"nothing")
