import asyncio
import json

from forebay.lag import Lag, Tolerance
from forebay.metadata import HostInfo
from forebay.rest.turns import result_in_turns
from forebay_router.cluster import worker_view
from forebay_router.cluster.worker_view import Report, WorkerView


def status(sequence, *tasks, **more):
    rows = [
        {"store": store, "partition": partition, "role": role, "record_lag": 3, "time_lag_ms": 4.5, "age_ms": None}
        for store, partition, role in tasks
    ]
    generation = {"incarnation": 1, "generation": 2}
    return {"incarnation": 7, "sequence": sequence, "generation": generation, "tasks": rows, **more}


def taken(view, document, polled_boot_ms=1000.0):
    reports = asyncio.run(result_in_turns(view.reading(document, polled_boot_ms)))
    view.take(json.dumps(document).encode(), document, reports, polled_boot_ms)
    return view


def test_a_status_says_who_holds_what_and_how_far_behind():
    view = taken(
        WorkerView(HostInfo("a", 1)),
        status(9, ("counts", 0, "active"), ("counts", 1, "standby"), ceiling={"max_record_lag": 10}),
    )
    lag = Lag(3, 4.5, None)
    assert view.replicas == {
        ("counts", 0): Report("active", lag, 1000.0),
        ("counts", 1): Report("standby", lag, 1000.0),
    }
    assert (view.incarnation, view.sequence, view.ceiling) == (7, 9, Tolerance(max_record_lag=10))
    assert view.is_healthy


def test_its_rows_are_those_of_the_last_status_with_the_lag_that_they_may_have_by_now(monkeypatch):
    monkeypatch.setattr(worker_view, "boot_ms", lambda: 3000.0)
    view = WorkerView(HostInfo("a", 1))
    assert list(view.rows()) == []
    taken(view, status(1, ("counts", 0, "active")))
    last = status(2, ("counts", 1, "standby"))
    [row] = taken(view, last, polled_boot_ms=1400.0).rows()
    assert row == {**last["tasks"][0], "time_lag_ms": 4.5 + 1600}


def test_silence_on_a_poll_makes_it_suspect_until_its_next_status():
    view = taken(WorkerView(HostInfo("a", 1)), status(1))
    view.suspect_at_once()
    assert not view.is_healthy
    assert taken(view, status(2)).is_healthy


def test_an_older_status_is_ignored():
    view = taken(WorkerView(HostInfo("a", 1)), status(5))
    assert not view.is_newer(status(4))
    assert not view.is_newer(status(5))
    assert view.is_newer(status(6))
    # A worker that was started later counts from the beginning.
    assert view.is_newer({**status(1), "incarnation": 8})
    assert not view.is_newer({**status(9), "incarnation": 6})
