import json

import msgspec

from forebay.lag import Lag, Tolerance
from forebay.streams_metadata import HostInfo
from forebay.wire.answer_schemas.status import StatusReport
from forebay_router.cluster import worker_view
from forebay_router.cluster.worker_view import Report, WorkerView


def status(sequence, *tasks, **more):
    rows = [
        {"store": store, "partition": partition, "role": role, "record_lag": 3, "time_lag_ms": 4, "age_ms": None}
        for store, partition, role in tasks
    ]
    generation = {"incarnation": 1, "generation": 2}
    identity = {"tier": "worker", "application_id": "app", "process_id": "p", "incarnation": 7}
    policy = {"acceptable_recovery_lag": 10_000, "num_standby_replicas": 1}
    return {
        **identity,
        **policy,
        "host": "a:1",
        "sequence": sequence,
        "generation": generation,
        "tasks": rows,
        **more,
    }


def report(document):
    return msgspec.convert(document, StatusReport)


def taken(view, document, polled_boot_ms=1000.0):
    view.take(json.dumps(document).encode(), report(document), polled_boot_ms)
    return view


def test_a_status_says_who_holds_what_and_how_far_behind():
    bounds = {"max_record_lag": 10, "max_time_lag_ms": None, "max_age_ms": None}
    view = taken(
        WorkerView(HostInfo("a", 1)),
        status(9, ("counts", 0, "active"), ("counts", 1, "standby"), ceiling=bounds),
    )
    lag = Lag(3, 4, None)
    assert view.replicas == {
        ("counts", 0): Report("active", lag, 1000.0),
        ("counts", 1): Report("standby", lag, 1000.0),
    }
    assert (view.incarnation, view.sequence, view.ceiling) == (7, 9, Tolerance(max_record_lag=10))
    assert view.is_healthy


def test_rows_are_of_the_last_status_with_aged_lag(monkeypatch):
    monkeypatch.setattr(worker_view, "boot_ms", lambda: 3000.0)
    view = WorkerView(HostInfo("a", 1))
    assert view.rows() == []
    taken(view, status(1, ("counts", 0, "active")))
    last = status(2, ("counts", 1, "standby"))
    [row] = taken(view, last, polled_boot_ms=1400.0).rows()
    assert row == {**last["tasks"][0], "time_lag_ms": 4 + 1600}


def test_unanswered_poll_makes_it_suspect():
    """Its next status ends that."""
    view = taken(WorkerView(HostInfo("a", 1)), status(1))
    view.suspect_at_once()
    assert not view.is_healthy
    assert taken(view, status(2)).is_healthy


def test_an_older_status_is_ignored():
    view = taken(WorkerView(HostInfo("a", 1)), status(5))
    assert not view.is_newer(report(status(4)))
    assert not view.is_newer(report(status(5)))
    assert view.is_newer(report(status(6)))
    # A worker that was started later counts from the beginning.
    assert view.is_newer(report(status(1, incarnation=8)))
    assert not view.is_newer(report(status(9, incarnation=6)))
