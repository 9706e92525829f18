"""Stores' logs follow the state of queries batch by batch, whatever the query, provider and version of Spark."""

import itertools
import json
import math
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from forebay.errors import ChangelogError, ChangelogUnreachable, TopologyError
from forebay.task_ids import TopicPartition
from forebay_changelog import Heartbeat
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.errors import StateUnsupported, VersionPurged
from forebay_tap.store_tap import StoreTap
from tests.support.running_query import RunningQuery, content, records, store

AGGREGATES = [
    {"name": "count", "position": 0, "function": "count"},
    {"name": "sum", "position": 1, "function": "sum"},
    {"name": "min", "position": 2, "function": "min"},
    {"name": "max", "position": 3, "function": "max"},
    {"name": "avg", "position": 4, "function": "avg"},
    {"name": "first", "position": 6, "function": "first"},
    {"name": "last", "position": 8, "function": "last"},
    {"name": "stddev", "position": 10, "function": "stddev"},
    {"name": "variance", "position": 13, "function": "variance"},
    {"name": "sum_d", "position": 16, "function": "sum"},
    {"name": "max_key", "position": 17, "function": "max"},
    {"name": "sum_decimal", "position": 18, "function": "sum"},
]
WINDOW = {"kind": "window", "window_size_ms": 60_000, "retention_ms": 86_400_000}
SESSION = {"kind": "session", "gap_ms": 30_000, "retention_ms": 86_400_000}
AVERAGES = [
    {"name": "count", "position": 0, "function": "count"},
    {"name": "avg", "position": 1, "function": "avg"},
]
SPECS: dict[str, Any] = {
    "aggregation": store(spark_state={"fields": AGGREGATES}),
    "windows": store(**WINDOW, spark_state={"fields": AVERAGES}),
    "sessions": store(**SESSION),
    "pandas_state": store(),
    "group_state": store(),
    "distinct": store(),
    "distinct_within": store(),
}
NOW_MS = 1_750_000_000_000
"""Before anything in the fixtures expires."""


def in_the_store(query: str, key: list[Any], value: Any) -> tuple[str, Any]:
    """A key and value that the state has, as the log is to have them."""
    match query:
        case "aggregation":
            names = [field["name"] for field in AGGREGATES]
            named = dict(zip(names, value, strict=True))
            if named["sum_decimal"] is not None:
                named["sum_decimal"] = float(named["sum_decimal"])
            return json.dumps(key[0]), named
        case "windows":
            [[start, _], group] = key
            return json.dumps([group, start // 1000]), {"count": value[0], "avg": value[1]}
        case "sessions":
            [group, start] = key
            named = {"count": value[1], "sum": value[2]}
            return json.dumps([group, value[0] // 1000, start // 1000]), named
        case "pandas_state" | "group_state":
            return json.dumps(key[0]), {"count": value[0][0], "last": value[0][1]}
        case "distinct_within":
            return json.dumps(key[0]), {"expiresAtMicros": value[0]}
    return json.dumps(key[0]), {}


def expected_of(query: str, state: dict[str, Any]) -> dict[str, Any]:
    """The log's content for a state: null is a key of no store."""
    pairs = [(json.loads(text), value) for text, value in state.items()]
    return dict(in_the_store(query, key, value) for key, value in pairs if None not in key)


@pytest.fixture
def changelog(tmp_path):
    return SqliteChangelog(tmp_path / "log")


@pytest.fixture
def tapped(tmp_path, changelog):
    """A running query, and the tap of a store of it."""

    def start(written: Any, name: str, spec: Any, **options: Any) -> tuple[RunningQuery, StoreTap]:
        changelog.ensure(spec)
        query = RunningQuery(written.path(name), tmp_path / f"checkpoint-{name}")
        return query, StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS, **options)

    return start


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, float) and found is not None:
        return math.isclose(found, expected, rel_tol=1e-12)
    return found == expected


@pytest.mark.parametrize(
    "name",
    [
        "aggregation-default",
        "aggregation-changelog",
        "aggregation-format2",
        "aggregation-rocksdb",
        "aggregation-format2_rocksdb",
        "pandas_state-changelog",
        "group_state-default",
        "group_state-format2",
        "distinct-default",
        "distinct_within-changelog",
    ],
)
def test_a_log_has_the_state_of_every_batch(written, name, changelog, tapped):
    query_name = name.partition("-")[0]
    spec = SPECS[query_name]
    query, tap = tapped(written, name, spec)
    states = written.expected(name)
    for batch in query.batches:
        query.end(batch)
        if batch == 0:
            tap.begin(batch)
        else:
            tap.follow(batch)
        found, expected = content(changelog, spec), expected_of(query_name, states[batch])
        assert same(found, expected), f"after batch {batch}: {found} is not {expected}"


@pytest.mark.parametrize("provider", ["default", "changelog"])
def test_windows_that_the_watermark_evicts_stay_in_the_log(written, provider, changelog, tapped):
    spec, name = SPECS["windows"], f"windows-{provider}"
    query, tap = tapped(written, name, spec)
    query.end(0)
    tap.begin(0)
    seen = expected_of("windows", written.expected(name)[0])
    for batch in query.batches[1:]:
        query.end(batch)
        tap.follow(batch)
        seen |= expected_of("windows", written.expected(name)[batch])
    assert same(content(changelog, spec), seen)
    assert len(seen) > len(expected_of("windows", written.expected(name)[-1]))


@pytest.mark.parametrize("provider", ["default", "changelog", "format2"])
def test_sessions_grow_merge_and_outlive_their_end(written, provider, changelog, tapped):
    """Open ones are there, of one that has grown only the last form, and those that the watermark closed stay."""
    spec, name = SPECS["sessions"], f"sessions-{provider}"
    query, tap = tapped(written, name, spec)
    query.end(0)
    tap.begin(0)
    for batch in query.batches[1:]:
        query.end(batch)
        tap.follow(batch)
    states = [expected_of("sessions", state) for state in written.expected(name)]
    ended: dict[str, Any] = {}
    for before, after in itertools.pairwise(states):
        starts = {(json.loads(key)[0], json.loads(key)[2]) for key in after}
        ended |= {
            key: value
            for key, value in before.items()
            if (json.loads(key)[0], json.loads(key)[2]) not in starts and key not in after
        }
    assert same(content(changelog, spec), ended | states[-1])


def test_session_copy_removes_merged_sessions(spark_4_0, changelog, tapped):
    """As the log would be had every batch been followed, but for what came and went in between."""
    spec, name = SPECS["sessions"], "sessions-default"
    query, tap = tapped(spark_4_0, name, spec)
    query.end(0)
    tap.begin(0)
    query.end(1)
    tap.copy(1, "the test wants it")
    first, second = (expected_of("sessions", state) for state in spark_4_0.expected(name)[:2])
    grown = {(json.loads(key)[0], json.loads(key)[2]) for key in second}
    stay = {key: value for key, value in first.items() if (json.loads(key)[0], json.loads(key)[2]) not in grown}
    assert same(content(changelog, spec), stay | second)


VARIABLES = {
    "total": (store(spark_state={"variable": "total"}), lambda held: {"sum": held[0], "last": held[1]}),
    "recent": (store(spark_state={"variable": "recent"}), lambda held: [{"n": item[0]} for item in held]),
    "total_ttl": (store(spark_state={"variable": "total_ttl"}), lambda held: {"sum": held[0]}),
    "recent_ttl": (store(spark_state={"variable": "recent_ttl"}), lambda held: [{"n": item[0]} for item in held]),
}


def as_seen(held: list[Any]) -> dict[str, Any]:
    at, amounts, by_key, total = held
    time = datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    named = None if total is None else {"sum": total[0], "last": total[1]}
    return {"at": time, "amounts": list(map(float, amounts)), "byKey": dict(by_key), "total": named}


SCALA_VARIABLES = {
    "seen": as_seen,
    "recent": lambda held: [{"value": item[0]} for item in held],
    "total_ttl": lambda held: {"value": held[0]},
}
"""A case class of several types, and types that are no class."""


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("provider", ["changelog", "format2", "rocksdb"])
def test_variables_of_a_stateful_processor_are_followed(written, variable, provider, changelog, tapped):
    spec, form = VARIABLES[variable]
    is_followed(written, f"ledger-{provider}", variable, spec, form, changelog, tapped)


@pytest.mark.parametrize("variable", SCALA_VARIABLES)
def test_variables_of_a_processor_in_scala_are_followed(written, variable, changelog, tapped):
    spec, form = store(spark_state={"variable": variable}), SCALA_VARIABLES[variable]
    is_followed(written, "scala_ledger-format2", variable, spec, form, changelog, tapped)


def is_followed(
    written: Any, name: str, variable: str, spec: Any, form: Any, changelog: SqliteChangelog, tapped: Any
) -> None:
    query, tap = tapped(written, name, spec)
    for batch in query.batches:
        query.end(batch)
        if batch == 0:
            tap.begin(batch)
        else:
            tap.follow(batch)
        held = {json.loads(key)[0]: value[0][variable] for key, value in written.expected(name)[batch].items()}
        expected = {json.dumps(key): form(value) for key, value in held.items() if key is not None and value}
        assert content(changelog, spec) == expected, batch


def test_the_entries_of_a_map_are_keys_of_their_own(spark_4_0, changelog, tapped):
    spec = store(key="json", spark_state={"variable": "by_second"})
    query, tap = tapped(spark_4_0, "ledger-changelog", spec)
    query.end(0)
    tap.begin(0)
    for batch in query.batches[1:]:
        query.end(batch)
        tap.follow(batch)
    expected = {
        json.dumps([json.loads(key)[0], second]): {"n": n}
        for key, (held, _) in spark_4_0.expected("ledger-changelog")[-1].items()
        for [second], [n] in held["by_second"]
    }
    assert content(changelog, spec) == expected


@pytest.mark.parametrize("variable", ["total_ttl", "recent_ttl"])
def test_expired_value_leaves_the_log_before_spark_does(spark_4_0, variable, tmp_path, changelog):
    """Also after a restart that came too late for it."""
    spec = VARIABLES[variable][0]
    changelog.ensure(spec)
    query = RunningQuery(spark_4_0.path("ledger-changelog"), tmp_path / "checkpoint")
    last, now_ms = query.end_all(), [NOW_MS]
    expiries = [expires for _, expires in spark_4_0.expected("ledger-changelog")[last].values()]
    tap = StoreTap(query.checkpoint, spec, changelog, lambda: now_ms[0])
    tap.begin(last)
    before = content(changelog, spec)
    assert tap.expire() == 0
    now_ms[0] = min(expiries) + 60_000
    again = StoreTap(query.checkpoint, spec, changelog, lambda: now_ms[0])
    again.begin(last)
    assert again.expire() > 0
    kept = content(changelog, spec)
    assert kept.keys() < before.keys() or kept == {}
    now_ms[0] = max(expiries) + 60_000
    again.expire()
    assert content(changelog, spec) == {}


def test_a_batch_that_was_half_written_is_in_a_sqlite_log_once(spark_4_0, tmp_path, changelog, tapped):
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    tap.begin(0)
    query.end(1)

    class Killed(SqliteChangelog):
        """Ends as a process does that is killed between a batch's rows and its heartbeats."""

        def append_heartbeat(self, *args: Any, **named: Any) -> dict[int, int]:
            raise KeyboardInterrupt

    interrupted = StoreTap(query.checkpoint, spec, Killed(changelog.directory), lambda: NOW_MS)
    interrupted.begin(1)
    with pytest.raises(KeyboardInterrupt):
        interrupted.follow(1)
    once = records(changelog, spec)
    again = StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS)
    again.begin(1)
    assert again.batch == 0
    again.follow(1)
    assert records(changelog, spec) == once
    expected = expected_of("aggregation", spark_4_0.expected("aggregation-default")[1])
    assert same(content(changelog, spec), expected)


class Failing(SqliteChangelog):
    """A log that cannot be reached at two writes of five, now before it and now after half of it."""

    attempts = 0
    is_cut = False

    def append_batch(self, *args: Any, **named: Any) -> dict[int, int]:
        self.attempts += 1
        if self.attempts % 5 == 1:
            raise ChangelogUnreachable("no broker answers")
        if self.attempts % 5 == 3:
            self.is_cut = True
            named["rows"] = dict(list(named["rows"].items())[:1])
        return super().append_batch(*args, **named)

    def append_heartbeat(self, *args: Any, **named: Any) -> dict[int, int]:
        if self.is_cut:
            self.is_cut = False
            raise ChangelogUnreachable("no broker answers any more")
        return super().append_heartbeat(*args, **named)


def until_it_is_reached(act: Any, *arguments: Any) -> None:
    """As the tap does."""
    for _ in range(10):
        try:
            act(*arguments)
        except ChangelogUnreachable:
            continue
        return
    raise AssertionError("it was never reached")


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("sessions-changelog", SPECS["sessions"]),
        ("aggregation-default", SPECS["aggregation"]),
        ("aggregation-rocksdb", SPECS["aggregation"]),
        ("ledger-changelog", store(spark_state={"variable": "recent"})),
        ("ledger-changelog", store(spark_state={"variable": "total_ttl"})),
        ("ledger-rocksdb", store(spark_state={"variable": "recent"})),
    ],
)
def test_a_log_that_is_away_again_and_again_gets_all_the_same(spark_4_0, name, spec, tmp_path, changelog):
    changelog.ensure(spec)
    expected = SqliteChangelog(tmp_path / "undisturbed")
    expected.ensure(spec)
    query = RunningQuery(spark_4_0.path(name), tmp_path / "checkpoint")
    failing = Failing(changelog.directory)
    now_ms = [NOW_MS]
    disturbed = StoreTap(query.checkpoint, spec, failing, lambda: now_ms[0])
    undisturbed = StoreTap(query.checkpoint, spec, expected, lambda: now_ms[0])
    for batch in query.batches:
        query.end(batch)
        if batch == 0:
            until_it_is_reached(disturbed.begin, batch)
            undisturbed.begin(batch)
        else:
            until_it_is_reached(disturbed.follow, batch)
            undisturbed.follow(batch)
        assert content(changelog, spec) == content(expected, spec), batch
    assert failing.attempts > len(query.batches)
    now_ms[0] = 2_000_000_000_000
    for _ in range(2):
        until_it_is_reached(disturbed.expire)
    undisturbed.expire()
    assert content(changelog, spec) == content(expected, spec)


def test_a_tap_knows_when_its_query_was_set_back(spark_4_0, changelog, tapped):
    query, tap = tapped(spark_4_0, "aggregation-default", SPECS["aggregation"])
    query.end(0)
    tap.begin(0)
    query.end(1)
    assert tap.has_batch()
    offsets = query.path / "offsets/0"
    offsets.write_text(offsets.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))
    assert not tap.has_batch()


def test_first_copy_is_marked_as_filling(spark_4_0, changelog, tapped):
    """The heartbeat marks the log as filling until it has the first whole state."""
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    filling = []
    append = changelog.append_batch

    def noted(*args: Any, **named: Any) -> dict[int, int]:
        filling.append(Heartbeat.parse(named["heartbeat"]).filling)
        return append(*args, **named)

    changelog.append_batch = noted
    tap.begin(0)
    query.end(1)
    tap.follow(1)
    tap.copy(1, "the test wants it")
    assert filling == [True, False, False, False, False]


def written_by(changelog: SqliteChangelog, spec: Any, writer: str, key: bytes) -> None:
    """A row of another writer, such as a sink or a fill."""
    rows = {spec.partition_of(key): [(key, b'{"count":1}')]}
    heartbeat = Heartbeat(None, writer, 0).value()
    changelog.append_batch(spec.topic, writer=writer, query_id=writer, batch_id=0, rows=rows, heartbeat=heartbeat)


def test_no_copy_deletes_what_others_have_written(spark_4_0, changelog, tapped):
    """Neither while they write, nor what they leave, unless that is asked for."""
    spec = store(spark_state={"fields": AGGREGATES[:1]})
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    written_by(changelog, spec, "nl", b"nl-1")
    with pytest.raises(ChangelogError, match=r"also written by nl.* forebay changelog retire-writer tapped nl\."):
        tap.begin(0)
    changelog.retire_writer(spec.topic, "nl")
    with pytest.raises(ChangelogError, match=r"has rows that 'tapped' has not written.* changelog reset tapped"):
        tap.begin(0)
    assert content(changelog, spec) == {'"nl-1"': {"count": 1}}
    assert changelog.last_heartbeat(spec.topic, "tapped") is None
    taking = StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS, take_over=True)
    taking.begin(0)
    assert '"nl-1"' not in content(changelog, spec)
    written_by(changelog, spec, "de", b"de-1")
    with pytest.raises(ChangelogError, match="also written by de"):
        taking.copy(0, "the test wants it")
    assert content(changelog, spec)['"de-1"'] == {"count": 1}


def test_copy_that_keeps_keys_keeps_those_of_others(spark_4_0, changelog, tapped):
    """The log had no state of this query before, so that until it has, no key is missing for sure."""
    spec = store(spark_state={"fields": AGGREGATES[:1], "on_removal": "keep"})
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    written_by(changelog, spec, "nl", b"nl-1")
    seen = []
    append = changelog.append_batch
    changelog.append_batch = lambda *args, **named: (seen.append(named["heartbeat"]), append(*args, **named))[1]
    tap.begin(0)
    assert content(changelog, spec)['"nl-1"'] == {"count": 1}
    assert len(content(changelog, spec)) > 1
    assert [Heartbeat.parse(value).filling for value in seen] == [True, False]


def test_copy_claims_its_name_before_it_reads_the_log(spark_4_0, changelog, tapped):
    """A tap that still runs elsewhere would write behind what was read: the copy would not know its keys."""
    spec = SPECS["aggregation"]
    query, first = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    first.begin(0)
    last = query.end_all()
    refused = []

    class Watched(SqliteChangelog):
        def consumer(self, *, replay: bool = False) -> Any:
            with pytest.raises(ChangelogError, match=r"this tap of query .*, start this tap again") as raised:
                first.follow(1)
            # That of a sink: a tap has no such option.
            assert "writer=" not in str(raised.value)
            refused.append(True)
            return super().consumer(replay=replay)

    second = StoreTap(query.checkpoint, spec, Watched(changelog.directory), lambda: NOW_MS)
    second.copy(last, "the test wants it")
    assert refused
    expected = expected_of("aggregation", spark_4_0.expected("aggregation-default")[last])
    assert same(content(changelog, spec), expected)


@pytest.mark.parametrize("act", [lambda tap: tap.follow(1), lambda tap: tap.keep_log()], ids=["batch", "idle"])
def test_log_that_is_reset_under_a_tap_is_filled_anew(spark_4_0, changelog, tapped, act):
    """With what no batch changes any more. Until it is there, no key is missing for sure."""
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    tap.begin(0)
    changelog.reset(spec)
    query.end(1)
    seen = []
    append = changelog.append_batch
    changelog.append_batch = lambda *args, **named: (seen.append(named["heartbeat"]), append(*args, **named))[1]
    act(tap)
    expected = expected_of("aggregation", spark_4_0.expected("aggregation-default")[1])
    assert same(content(changelog, spec), expected)
    assert [Heartbeat.parse(value).filling for value in seen] == [True, False]
    first = changelog.last_heartbeat(spec.topic, spec.name)
    StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS).begin(1)
    assert changelog.last_heartbeat(spec.topic, spec.name) == first


@pytest.mark.parametrize("lost", [{0}, {2}, {1, 2}])
def test_lost_partitions_are_filled_by_the_next_start(spark_4_0, changelog, tapped, lost):
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    tap.begin(0)
    before = content(changelog, spec)
    for partition in lost:
        for file in (changelog.directory / spec.topic).glob(f"{partition}.db*"):
            file.unlink()
    again = SqliteChangelog(changelog.directory)
    again.ensure(spec)
    assert content(again, spec) != before
    seen = []
    append = again.append_batch
    again.append_batch = lambda *args, **named: (seen.append(named["heartbeat"]), append(*args, **named))[1]
    StoreTap(query.checkpoint, spec, again, lambda: NOW_MS).begin(0)
    assert content(again, spec) == before
    assert [Heartbeat.parse(value).filling for value in seen] == [True, False]
    last = again.last_heartbeat(spec.topic, spec.name)
    StoreTap(query.checkpoint, spec, again, lambda: NOW_MS).begin(0)
    assert again.last_heartbeat(spec.topic, spec.name) == last


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("partition", [0, 2])
def test_a_partition_that_lost_its_end_is_filled(spark_4_0, changelog, tapped, tmp_path, partition, lost):
    """Only the heartbeats of the other partitions tell. A last batch may not have been written whole: it is
    repeated."""
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    tap.begin(0)
    path = changelog.path(TopicPartition(spec.topic, partition))
    with closing(sqlite3.connect(path)) as current, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        current.backup(copy)
    for batch in range(1, lost + 1):
        query.end(batch)
        tap.follow(batch)
    before = content(changelog, spec)
    with closing(sqlite3.connect(path)) as current, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        copy.backup(current)
    assert content(changelog, spec) != before
    seen, append = [], changelog.append_batch
    changelog.append_batch = lambda *args, **named: (seen.append(named["heartbeat"]), append(*args, **named))[1]
    again = StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS)
    again.begin(lost)
    for batch in range(again.batch + 1, lost + 1):
        again.follow(batch)
    assert content(changelog, spec) == before
    assert [Heartbeat.parse(value).filling for value in seen] == ([False] if lost == 1 else [True, False])


def test_a_writer_that_goes_on_meanwhile_has_lost_nothing(spark_4_0, changelog, tapped):
    """The heartbeats of partitions are read one after the other."""
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    tap.begin(0)
    last_heartbeats, first = changelog.last_heartbeats, changelog.last_heartbeat(spec.topic, spec.name)
    earlier = msgspec.structs.replace(first, batch_id=-5)
    readings = [[earlier, *last_heartbeats(spec.topic, spec.name)[1:]], last_heartbeats(spec.topic, spec.name)]
    changelog.last_heartbeat, changelog.last_heartbeats = lambda *_: first, lambda *_: readings.pop(0)
    StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS).begin(0)
    assert not readings
    assert last_heartbeats(spec.topic, spec.name) == [first] * spec.partitions


def test_a_query_that_was_set_back_is_copied_anew(spark_4_0, tmp_path, changelog, tapped):
    """The same batch numbers, of another run: what the log has of the first one goes."""
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    last = query.end_all()
    tap.begin(last)
    for directory in ("commits", "offsets", "state"):
        for later in (2, 3, 4):
            for stale in query.path.glob(f"{directory}/**/{later + (directory == 'state')}.delta"):
                stale.unlink()
            (query.path / directory / str(later)).unlink(missing_ok=True)
    offsets = query.path / "offsets/1"
    offsets.write_text(offsets.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))
    again = StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS)
    again.begin(1)
    expected = expected_of("aggregation", spark_4_0.expected("aggregation-default")[1])
    assert same(content(changelog, spec), expected)


def test_batch_repeated_under_its_number_is_copied_anew(spark_4_0, changelog, tapped):
    """After a query was set back and has come as far again, only what it planned tells the two apart."""
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-default", spec)
    last = query.end_all()
    tap.begin(last)
    first = changelog.last_heartbeat(spec.topic, spec.name)
    StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS).begin(last)
    assert changelog.last_heartbeat(spec.topic, spec.name) == first
    offsets = query.path / "offsets" / str(last)
    offsets.write_text(offsets.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))
    StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS).begin(last)
    assert changelog.last_heartbeat(spec.topic, spec.name).query_id != first.query_id


@pytest.mark.parametrize("name", ["aggregation-default", "aggregation-changelog"])
def test_last_batch_that_was_run_again_is_copied_anew(written, name, changelog, tapped):
    """In checkpoint format 1 it has the same plan and commit, but may have made other state: Spark writes the
    commit anew."""
    spec = SPECS["aggregation"]
    query, tap = tapped(written, name, spec)
    last = query.end_all()
    tap.begin(last)
    assert tap.has_batch()
    first = changelog.last_heartbeat(spec.topic, spec.name)
    StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS).begin(last)
    assert changelog.last_heartbeat(spec.topic, spec.name) == first
    query.run_again(last)
    assert not tap.has_batch()
    StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS).begin(last)
    assert changelog.last_heartbeat(spec.topic, spec.name).query_id != first.query_id


def test_batch_that_is_run_again_while_it_is_read_is_read_again(spark_4_0, changelog, tapped):
    """What was read may be the state of either attempt."""
    query, first = tapped(spark_4_0, "aggregation-default", SPECS["aggregation"])
    query.end(0)
    first.begin(0)
    query.end(1)

    def read() -> int:
        if query.checkpoint.is_committed(1):
            query.run_again(1)
        return NOW_MS

    tap = StoreTap(query.checkpoint, SPECS["aggregation"], changelog, read)
    tap.begin(0)
    assert tap.has_batch()
    tap.follow(1)
    assert not tap.has_batch()


def test_changes_that_spark_has_purged_are_made_up_by_a_copy(spark_4_0, changelog, tapped):
    spec = SPECS["aggregation"]
    query, tap = tapped(spark_4_0, "aggregation-changelog", spec)
    query.end(0)
    tap.begin(0)
    last = query.end_all()
    for purged in query.path.glob("state/0/*/2.changelog"):
        purged.unlink()
    # Versions from a snapshot on can still be had.
    whole = spark_4_0.path("aggregation-changelog")
    if not list(whole.glob("state/0/*/[3-5].zip")):
        shutil.rmtree(query.path / "state")
        shutil.copytree(spark_4_0.path("aggregation-rocksdb") / "state", query.path / "state")
    tap.follow(1)
    assert tap.batch == last
    expected = expected_of("aggregation", spark_4_0.expected("aggregation-changelog")[last])
    assert same(content(changelog, spec), expected)


def losing(query: RunningQuery, batches: list[int]) -> Checkpoint:
    """A checkpoint of which Spark deletes the state that is read, once for each of the batches that it ends
    meanwhile."""
    checkpoint = query.checkpoint
    snapshot, remaining = checkpoint.snapshot, iter(batches)

    def lost(operator: int, partition: int, version: int, *named: Any) -> Any:
        batch = next(remaining, None) if partition == 1 else None
        if batch is not None:
            query.end(batch)
            raise VersionPurged(f"no {version}.delta")
        return snapshot(operator, partition, version, *named)

    checkpoint.snapshot = lost
    return checkpoint


def test_copy_that_loses_its_batch_goes_on_with_the_newest(spark_4_0, changelog, tapped, caplog):
    """Of the first attempt, half is in the log."""
    spec = SPECS["aggregation"]
    query, _ = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    tap = StoreTap(losing(query, [1, 2]), spec, changelog, lambda: NOW_MS)
    tap.begin(0)
    assert tap.batch == 2
    expected = expected_of("aggregation", spark_4_0.expected("aggregation-default")[2])
    assert same(content(changelog, spec), expected)
    assert "raise spark.sql.streaming.minBatchesToRetain" in caplog.text


def test_comparison_that_loses_its_batch_goes_on_with_the_newest(spark_4_0, changelog, tapped):
    """Of a query that keeps no changes, every batch is compared."""
    spec, name = SPECS["aggregation"], "aggregation-rocksdb"
    query, _ = tapped(spark_4_0, name, spec)
    query.end(0)
    checkpoint = query.checkpoint
    tap = StoreTap(checkpoint, spec, changelog, lambda: NOW_MS)
    tap.begin(0)
    query.end(1)
    tap.follow(1)
    query.end(2)
    checkpoint.snapshot = losing(query, [3]).snapshot
    tap.follow(2)
    assert tap.batch == 3
    assert same(content(changelog, spec), expected_of("aggregation", spark_4_0.expected(name)[3]))


def test_copies_that_are_always_lost_end_with_the_remedy(spark_4_0, changelog, tapped):
    spec = SPECS["aggregation"]
    query, _ = tapped(spark_4_0, "aggregation-default", spec)
    query.end(0)
    tap = StoreTap(losing(query, [1, 2, 3]), spec, changelog, lambda: NOW_MS)
    with pytest.raises(VersionPurged, match=r"of 3 batches while it was copied: raise .*minBatchesToRetain"):
        tap.begin(0)
    query.end(4)
    again = StoreTap(losing(query, [4]), spec, changelog, lambda: NOW_MS)
    with pytest.raises(VersionPurged, match=r"^no 5\.delta"):
        again.begin(4)


def test_changed_field_declaration_rewrites_every_value(spark_4_0, changelog, tapped):
    query, tap = tapped(spark_4_0, "aggregation-default", SPECS["aggregation"])
    query.end(0)
    tap.begin(0)
    spec = store(spark_state={"fields": AGGREGATES[:1]})
    other = StoreTap(query.checkpoint, spec, changelog, lambda: NOW_MS)
    other.begin(0)
    assert {tuple(value) for value in content(changelog, spec).values()} == {("count",)}


def test_the_log_of_another_query_is_replaced_only_on_request(spark_4_0, changelog, tapped):
    spec = SPECS["distinct"]
    query, tap = tapped(spark_4_0, "distinct-default", spec)
    query.end(0)
    tap.begin(0)
    other, refused = tapped(spark_4_0, "distinct-changelog", spec)
    last = other.end_all()
    with pytest.raises(ChangelogError, match="--take-over"):
        refused.begin(last)
    taking = StoreTap(other.checkpoint, spec, changelog, lambda: NOW_MS, take_over=True)
    taking.begin(last)
    assert same(content(changelog, spec), expected_of("distinct", spark_4_0.expected("distinct-changelog")[last]))
    query.end(1)
    with pytest.raises(ChangelogError, match="superseded"):
        tap.follow(1)


@pytest.mark.parametrize(
    ("name", "spec", "error", "words"),
    [
        ("aggregation-default", store(), TopologyError, ["buffers", "fields = [", '"avg"']),
        ("aggregation-default", store(key="int64"), TopologyError, ["key string", "'int64'", 'key = "string"']),
        ("windows-default", store(), TopologyError, ["window store", 'kind = "window"']),
        (
            "windows-default",
            store(**{**WINDOW, "window_size_ms": 30_000}, spark_state={"fields": AVERAGES}),
            StateUnsupported,
            ["60000 ms", "window_size_ms", "30000"],
        ),
        ("joined-default", store(), StateUnsupported, ["symmetricHashJoin", "a join keeps rows that wait"]),
        ("ledger-changelog", store(), TopologyError, ["several variables", "recent", "variable ="]),
        (
            "aggregation-default",
            store(spark_state={"fields": [{"name": "n", "position": 99}]}),
            TopologyError,
            ["position 99", "does not have"],
        ),
        (
            "aggregation-default",
            store(spark_state={"fields": [{"name": "n", "position": 0, "function": "avg"}]}),
            StateUnsupported,
            ["avg needs the fields sum, count"],
        ),
    ],
)
def test_a_store_that_cannot_have_the_state_is_refused(spark_4_0, name, spec, error, words, tapped):
    query, tap = tapped(spark_4_0, name, spec)
    with pytest.raises(error) as caught:
        tap.begin(query.end_all())
    for word in words:
        assert word in str(caught.value)


def test_tap_shows_that_it_runs_though_nothing_is_new(spark_4_0, tmp_path, changelog):
    """It repeats the age that it knows: a log that is compacted has the newest heartbeat only."""
    spec, now_ms = SPECS["aggregation"], [NOW_MS]
    changelog.ensure(spec)
    query = RunningQuery(spark_4_0.path("aggregation-default"), tmp_path / "checkpoint")
    query.end(0)
    tap = StoreTap(query.checkpoint, spec, changelog, lambda: now_ms[0])
    tap.begin(0)
    stated: list[int | None] = []
    append = changelog.append_heartbeat
    changelog.append_heartbeat = lambda *args, **named: (
        stated.append(Heartbeat.parse(named["value"]).as_of_ms),
        append(*args, **named),
    )[1]
    for at_ms, as_of_ms in (
        (0, None),
        (1, None),
        (2_000, 5),
        (3_000, 5),
        (11_999, 5),
        (12_000, None),
        (22_000, 5),
    ):
        now_ms[0] = NOW_MS + at_ms
        tap.beat(as_of_ms)
    assert stated == [None, 5, 5, 5]
