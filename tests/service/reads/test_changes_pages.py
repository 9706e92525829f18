"""Pages of the state and the changes of a real store, as its log is applied."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.clock import boot_ms
from forebay.errors import LagExceedsTolerance, NotReady, PositionNotReached, Problem
from forebay.lag import EndOffset
from forebay.record_orders import with_order
from forebay.wire.parameters import STORE_CHANGES_PARAMETERS, parse_parameters
from forebay_changelog import Batch
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage
from forebay_web.store_changes.selection import make_selection
from forebay_worker.reads.admission import Refused
from forebay_worker.reads.changes_pages import changes_page
from forebay_worker.tasks.apply import apply_batch
from forebay_worker.tasks.recent_changes import ChangesSince, RecentChanges
from tests.support.held_reads import held

WINDOW = {"kind": "window", "window_size_ms": 10, "retention_ms": 1_000_000}
SESSION = {"kind": "session", "gap_ms": 10, "retention_ms": 1_000_000}
VERSIONED = {"kind": "versioned", "history_retention_ms": 1_000_000}


class Served:
    """A replica with the key ``k``, and one who follows it."""

    def __init__(self, directory: Path, query: str = "", **of_the_store: Any) -> None:
        self.admission, self.replica = held(directory, **of_the_store)
        self.replica.view.recent_changes.restart(1)
        self.parameters = parse_parameters(query.encode(), STORE_CHANGES_PARAMETERS)
        self.selection = make_selection(self.replica.spec, self.parameters)
        self.cursor: ChangesCursor | None = None

    def apply(self, *rows: tuple[bytes, bytes | None], timestamp_ms: int = 0) -> None:
        begin = self.replica.view.progress.position
        records = [(begin + i, key, value, timestamp_ms, False) for i, (key, value) in enumerate(rows)]
        end = begin + len(rows)
        tp = self.replica.topic_partition
        apply_batch(self.replica, Batch(tp, records, end, False, EndOffset(end, boot_ms()), 0, 0, "log"))

    def page(self, *, state: bool = False, page_bytes: int = 1 << 20) -> ChangesPage:
        page = changes_page(
            self.admission, self.selection, 0, self.cursor, self.parameters, state=state, page_bytes=page_bytes
        )
        self.cursor = page.cursor
        return page

    def refused(self) -> Problem:
        with pytest.raises(Refused) as refusal:
            self.page()
        return refusal.value.problem


def values(page: ChangesPage) -> list[tuple[Any, ...]]:
    """What a page has: names and, unless it is gone, the value."""
    items = [json.loads(item) for item in [*page.items, *page.gone]]
    return [tuple(item[name] for name in item if name != "timestamp_ms") for item in items]


def test_state_is_followed_by_each_keys_newest_change(tmp_path):
    served = Served(tmp_path)
    first = served.page()
    assert (first.reset, first.cursor.whole, values(first)) == (True, True, [("k", 1)])
    served.apply((b"a", b"1"), (b"k", b"2"))
    served.apply((b"a", b"2"), (b"gone", b"3"))
    served.apply((b"gone", None))
    page = served.page()
    assert not page.reset
    assert values(page) == [("a", 2), ("k", 2), ("gone",)]
    assert page.gone == [b'{"key":"gone"}']
    assert values(served.page()) == []


def test_no_change_that_is_applied_while_a_page_is_read_is_lost(tmp_path, monkeypatch):
    """The thread that applies records may do so at any moment of a read."""
    served = Served(tmp_path)
    served.page()
    since = RecentChanges.since

    def applied_meanwhile(recent: RecentChanges, *after: Any) -> ChangesSince | None:
        found = since(recent, *after)
        served.apply((b"late", b"1"))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(RecentChanges, "since", applied_meanwhile)
        shown = values(served.page())
    assert shown + values(served.page()) == [("late", 1)]


def test_a_long_state_is_kept_true_while_it_is_sent(tmp_path):
    served = Served(tmp_path)
    served.apply(*[(b"a%03d" % i, b"0") for i in range(300)])
    state = dict(values(served.page(page_bytes=500)))
    assert 0 < len(state) < 300
    served.apply((b"a000", b"1"), (b"a001", None), (b"a299", b"2"), (b"z", b"3"))
    changed = served.page()
    # What was not sent yet will be sent as it is then.
    assert values(changed) == [("a000", 1), ("a001",)]
    while not (page := served.page(state=True, page_bytes=500)).cursor.whole:
        state |= dict(values(page))
    state |= dict(values(page)) | dict(values(changed)[:1])
    del state["a001"]
    assert len(state) == 301
    assert (state["a000"], state["a299"], state["z"], state["k"]) == (1, 2, 3, 1)
    assert values(served.page()) == []


def test_many_changes_come_in_several_pages_each_key_once(tmp_path):
    served = Served(tmp_path)
    served.page()
    served.apply(*[(b"a%03d" % i, b"1") for i in range(100)])
    served.apply(*[(b"b%03d" % i, b"1") for i in range(100)])
    found, pages = [], 0
    while True:
        page = served.page(page_bytes=600)
        found += values(page)
        pages += 1
        if not page.more:
            break
    assert pages > 5
    assert sorted(found) == sorted([(f"{letter}{i:03}", 1) for letter in "ab" for i in range(100)])


def test_unknown_deletions_restart_from_the_state(tmp_path):
    """The recent changes were dropped, so that deletions cannot be known."""
    served = Served(tmp_path)
    served.page()
    served.apply((b"k", None), (b"b", b"1"))
    served.replica.view.recent_changes.restart(3)
    page = served.page()
    assert (page.reset, values(page)) == (True, [("b", 1)])


def test_a_log_that_was_replaced_is_followed_from_its_beginning(tmp_path):
    served = Served(tmp_path)
    served.page()
    assert served.cursor is not None
    of_this_log = served.cursor.log
    served.cursor = served.cursor._replace(log=b"x" * 8, upper=1 << 40)
    assert served.page().reset
    # As after an id of a client that did not get the whole state.
    served.cursor = ChangesCursor(of_this_log, 0, 1)
    assert served.page().reset


def test_no_page_goes_back_and_none_is_beyond_the_bounds(tmp_path):
    served = Served(tmp_path, "max_record_lag=3")
    served.page()
    served.replica.publish(progress=served.replica.view.progress._replace(applying_to=5))
    page = served.page()
    assert page.cursor.upper == 5
    # Only a replica that is as far may continue, or begin anew.
    assert isinstance(served.refused(), PositionNotReached)
    served.cursor = ChangesCursor(page.cursor.log, 0, 5)
    assert isinstance(served.refused(), PositionNotReached)
    served.cursor = None
    served.replica.publish(progress=served.replica.view.progress._replace(end_offset=5))
    assert isinstance(served.refused(), LagExceedsTolerance)


def test_bulk_restoring_replica_serves_no_changes(tmp_path):
    served = Served(tmp_path)
    served.page()
    served.replica.publish(progress=served.replica.view.progress._replace(position=2, consistent_position=2))
    assert isinstance(served.refused(), NotReady)


def test_windows_and_sessions_are_followed_with_times(tmp_path):
    windows = Served(tmp_path / "windows", "prefix=k&from=5000", **WINDOW)
    assert values(windows.page()) == [("k", 5000, 5010, 1)]
    at = [time_ms.to_bytes(8, "big") for time_ms in (4_000, 5_000, 6_000)]
    windows.apply(*[(b"k" + one, b"2") for one in at], (b"other" + at[1], b"2"), timestamp_ms=6_000)
    assert values(windows.page()) == [("k", 5000, 5010, 2), ("k", 6000, 6010, 2)]
    windows.apply((b"k" + at[1], None), (b"k" + at[0], None), timestamp_ms=6_000)
    assert windows.page().gone == [b'{"key":"k","start_ms":5000,"end_ms":5010}']
    sessions = Served(tmp_path / "sessions", 'keys=["k"]', **SESSION)
    assert values(sessions.page()) == [("k", 5000, 5000, 1)]
    sessions.apply((b"k" + at[1] + at[1], None), (b"k" + at[2] + at[1], b"3"), timestamp_ms=6_000)
    assert sorted(values(sessions.page())) == [("k", 5000, 5000), ("k", 5000, 6000, 3)]


@pytest.mark.parametrize("query", ["", 'keys=["b","gone","k","nobody"]'])
def test_of_versions_the_newest_is_followed(tmp_path, query):
    served = Served(tmp_path, query, **VERSIONED)
    served.apply((b"k", b"2"), (b"b", b"1"), (b"gone", b"1"), timestamp_ms=6_000)
    served.apply((b"b", b"3"), (b"gone", None), timestamp_ms=7_000)
    state = values(served.page(page_bytes=1))
    while served.cursor is not None and not served.cursor.whole:
        state += values(served.page(state=True, page_bytes=1))
    assert state == [("b", 3), ("k", 2)]
    served.apply((b"k", b"0"), timestamp_ms=5_500)
    served.apply((b"b", None), timestamp_ms=8_000)
    assert values(served.page()) == [("k", 2), ("b",)]


@pytest.mark.parametrize("query", ["", 'keys=["b","k"]'])
def test_of_orders_the_highest_is_followed(tmp_path, query):
    served = Served(tmp_path, query, latest_by="n")
    served.apply((with_order(b"k", 7_000), b"7"), (with_order(b"b", 2), b"2"), (with_order(b"b", 1), b"1"))
    assert values(served.page()) == [("b", 2), ("k", 7)]
    # One that comes late changes nothing.
    served.apply((with_order(b"k", 8_000), None), (with_order(b"b", 0), b"0"))
    assert values(served.page()) == [("b", 2), ("k",)]


def test_keys_are_read_by_themselves_some_of_them_absent(tmp_path):
    served = Served(tmp_path, 'keys=["a","b","k","nobody"]')
    served.apply((b"a", b"1"), (b"ab", b"2"), (b"b", b"3"))
    state = values(served.page(page_bytes=1))
    while served.cursor is not None and not served.cursor.whole:
        state += values(served.page(state=True, page_bytes=1))
    assert state == [("a", 1), ("b", 3), ("k", 1)]


def test_a_page_is_the_same_after_its_way_to_a_router(tmp_path):
    page = Served(tmp_path).page()
    again = ChangesPage.decode(page.encode())
    assert (again.cursor, again.source, again.items, again.reset) == (page.cursor, page.source, page.items, True)
    for wrong in (b"", b"\x93\x01\x02\x03", page.encode()[:-1]):
        with pytest.raises(ValueError, match="something other"):
            ChangesPage.decode(wrong)
