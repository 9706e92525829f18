"""What a tap could not see leave the state is not in the log as if it were known, and the log says so."""

import json
from dataclasses import replace
from typing import Any

import pytest

from forebay.store_spec import StoreSpec
from forebay.unproven import UnprovenRange
from forebay_changelog import Heartbeat
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_tap.gap import still_unproven
from forebay_tap.store_tap import StoreTap
from tests.support.running_query import RunningQuery, content, store

FIELDS = [
    {"name": "count", "position": 0, "function": "count"},
    {"name": "avg", "position": 1, "function": "avg"},
]
SPECS = {
    "windows": store(
        kind="window", window_size_ms=60_000, retention_ms=86_400_000, spark_state={"fields": FIELDS}
    ),
    "sessions": store(kind="session", gap_ms=30_000, retention_ms=86_400_000),
}
WATERMARKS_MS = [0, *(1704067200_000 + seconds * 1000 for seconds in (2, 51, 70, 192, 195))]
"""Those of the batches in the fixtures: each evicts what ended by its own."""
LAST = 5


@pytest.fixture
def changelog(tmp_path):
    return SqliteChangelog(tmp_path / "log")


def end_ms(spec: StoreSpec, key: str) -> int:
    time_ms = int(json.loads(key)[1])
    return time_ms + (spec.window_size_ms or 0)


def tap_of(query: RunningQuery, spec: StoreSpec, changelog: SqliteChangelog, **options: Any) -> StoreTap:
    changelog.ensure(spec)
    return StoreTap(query.checkpoint, spec, changelog, lambda: 0, **options)


def followed(query: RunningQuery, spec: StoreSpec, changelog: SqliteChangelog, last: int) -> StoreTap:
    """A tap that was there from the first batch to the last."""
    tap = tap_of(query, spec, changelog)
    for batch in range(last + 1):
        query.end(batch)
        if batch == 0:
            tap.begin(0)
        else:
            tap.follow(batch)
    return tap


def purge(query: RunningQuery, oldest: int) -> None:
    """Delete what Spark does not retain of the batches before."""
    for batch in range(oldest):
        for directory in ("offsets", "commits"):
            (query.path / directory / str(batch)).unlink(missing_ok=True)


def heartbeat(changelog: SqliteChangelog, spec: StoreSpec) -> Heartbeat:
    last = changelog.last_heartbeat(spec.topic, spec.name)
    assert last is not None
    return last


def is_unproven(changelog: SqliteChangelog, spec: StoreSpec, end: int) -> bool:
    return any(one.meets((end, end + 1)) for one in heartbeat(changelog, spec).unproven)


@pytest.fixture(params=[(name, provider) for name in SPECS for provider in ("default", "changelog", "format2")])
def query_of(request, spark_4_0, tmp_path):
    name, provider = request.param

    def start(directory: str) -> tuple[RunningQuery, StoreSpec]:
        return RunningQuery(spark_4_0.path(f"{name}-{provider}"), tmp_path / directory), SPECS[name]

    return start


@pytest.mark.parametrize("left_after", [0, 1, 2, 3])
def test_what_ended_while_a_tap_was_away_is_withdrawn(query_of, tmp_path, changelog, left_after):
    """All that the log still has is as if the tap had never been away, and all that it lacks is unproven."""
    query, spec = query_of("checkpoint")
    followed(query, spec, changelog, left_after)
    purged, truth = query_of("undisturbed")[0], SqliteChangelog(tmp_path / "truth")
    followed(purged, spec, truth, LAST)
    query.end_all()
    purge(query, LAST)
    tap_of(query, spec, changelog).begin(LAST)
    found, expected = content(changelog, spec), content(truth, spec)
    assert {key: expected.get(key) for key in found} == found
    lacking = expected.keys() - found.keys()
    assert all(is_unproven(changelog, spec, end_ms(spec, key)) for key in lacking)
    assert lacking
    assert not any(is_unproven(changelog, spec, end_ms(spec, key)) for key in found)
    [gap] = heartbeat(changelog, spec).unproven
    assert gap == (WATERMARKS_MS[left_after], WATERMARKS_MS[LAST])


def test_first_copy_says_that_nothing_is_known_of_what_ended_before(query_of, changelog):
    query, spec = query_of("checkpoint")
    query.end_all()
    tap_of(query, spec, changelog).begin(LAST)
    assert heartbeat(changelog, spec).unproven == (UnprovenRange(None, WATERMARKS_MS[LAST]),)


def test_tap_that_was_there_from_the_beginning_has_proven_all(query_of, changelog):
    """So has one that was away for as long as Spark retains batches."""
    query, spec = query_of("checkpoint")
    followed(query, spec, changelog, 2)
    for batch in range(3, LAST + 1):
        query.end(batch)
    again = tap_of(query, spec, changelog)
    again.begin(LAST)
    while again.batch != LAST:
        again.follow(again.batch + 1)
    last = heartbeat(changelog, spec)
    assert (last.unproven, last.watermark_ms) == ((), WATERMARKS_MS[LAST])


def test_gap_stays_in_the_log_until_retention_has_passed_it(query_of, changelog):
    """Also while the tap follows, and when it starts again."""
    query, spec = query_of("checkpoint")
    followed(query, spec, changelog, 1)
    for batch in range(2, LAST):
        query.end(batch)
    purge(query, LAST - 1)
    away = (UnprovenRange(WATERMARKS_MS[1], WATERMARKS_MS[LAST - 1]),)
    tap_of(query, spec, changelog).begin(LAST - 1)
    assert heartbeat(changelog, spec).unproven == away
    query.end(LAST)
    again = tap_of(query, spec, changelog)
    again.begin(LAST - 1)
    again.follow(LAST)
    assert heartbeat(changelog, spec).unproven == away
    passed_ms = away[0].to_ms + spec.retention_ms
    assert still_unproven(away, spec, passed_ms - 1) != ()
    assert still_unproven(away, spec, passed_ms) == ()


def test_copy_that_was_interrupted_knows_the_gap_still(query_of, changelog):
    """The log says so from its first record on."""
    query, spec = query_of("checkpoint")
    followed(query, spec, changelog, 1)
    query.end_all()
    purge(query, LAST)

    class Killed(SqliteChangelog):
        """Ends as a process does that is killed after the first heartbeat of a copy."""

        def consumer(self, *, replay: bool = False) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tap_of(query, spec, Killed(changelog.directory)).begin(LAST)
    away = (UnprovenRange(WATERMARKS_MS[1], WATERMARKS_MS[LAST]),)
    assert (heartbeat(changelog, spec).batch_id, heartbeat(changelog, spec).unproven) == (-1, away)
    tap_of(query, spec, changelog).begin(LAST)
    assert (heartbeat(changelog, spec).batch_id, heartbeat(changelog, spec).unproven) == (LAST, away)
    assert not any(is_unproven(changelog, spec, end_ms(spec, key)) for key in content(changelog, spec))


def test_query_that_was_set_back_proves_only_what_both_histories_have(query_of, changelog, tmp_path):
    """The batches that ended before are those of both. What the log has of the others is withdrawn."""
    query, spec = query_of("checkpoint")
    tap = followed(query, spec, changelog, 3)
    assert tap.batch == 3
    for batch in (2, 3):
        query.run_again(batch)
        offsets = query.path / "offsets" / str(batch)
        offsets.write_text(offsets.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))
    query.end(4)
    tap_of(query, spec, changelog).begin(4)
    assert heartbeat(changelog, spec).unproven == (UnprovenRange(WATERMARKS_MS[1], WATERMARKS_MS[4]),)
    assert not any(is_unproven(changelog, spec, end_ms(spec, key)) for key in content(changelog, spec))


def test_log_that_was_lost_proves_nothing_of_what_ended(query_of, changelog):
    query, spec = query_of("checkpoint")
    tap = followed(query, spec, changelog, 3)
    changelog.reset(spec)
    tap.keep_log()
    assert heartbeat(changelog, spec).unproven == (UnprovenRange(None, WATERMARKS_MS[3]),)


def test_what_others_wrote_is_not_withdrawn(spark_4_0, tmp_path, changelog):
    """It is unproven, since nobody knows whose an entry is."""
    query, spec = RunningQuery(spark_4_0.path("windows-default"), tmp_path / "checkpoint"), SPECS["windows"]
    followed(query, spec, changelog, 1)
    before = content(changelog, spec)
    changelog.append_heartbeat(
        spec.topic, writer="other", query_id="other", value=Heartbeat(None, "other", 0).value()
    )
    query.end_all()
    purge(query, LAST)
    tap_of(query, spec, changelog).begin(LAST)
    assert content(changelog, spec).keys() > before.keys()
    assert heartbeat(changelog, spec).unproven == (UnprovenRange(WATERMARKS_MS[1], WATERMARKS_MS[LAST]),)


def test_store_that_deletes_what_leaves_the_state_has_no_gap(spark_4_0, tmp_path, changelog):
    """Its log is the state."""
    spec = replace(SPECS["windows"], spark_state=replace(SPECS["windows"].spark_state, on_removal="delete"))
    query = RunningQuery(spark_4_0.path("windows-default"), tmp_path / "checkpoint")
    followed(query, spec, changelog, 1)
    query.end_all()
    purge(query, LAST)
    tap_of(query, spec, changelog).begin(LAST)
    assert heartbeat(changelog, spec).unproven == ()
    state = {json.dumps([key[1], key[0][0] // 1000]) for key in _keys(spark_4_0, "windows-default") if key[1]}
    assert content(changelog, spec).keys() == state


def _keys(written: Any, name: str) -> list[Any]:
    return [json.loads(key) for key in written.expected(name)[LAST]]


def test_keys_deleted_while_a_tap_was_away_are_deleted_by_its_copy(spark_4_0, tmp_path, changelog):
    """A key-value store is the state, so that nothing of it is unproven."""
    spec = store()
    query = RunningQuery(spark_4_0.path("distinct_within-changelog"), tmp_path / "checkpoint")
    followed(query, spec, changelog, 1)
    before = content(changelog, spec)
    query.end(2)
    purge(query, 2)
    tap_of(query, spec, changelog).begin(2)
    state = {json.dumps(json.loads(key)[0]) for key in spark_4_0.expected("distinct_within-changelog")[2]}
    assert content(changelog, spec).keys() == state - {"null"}
    assert before.keys() - state
    assert heartbeat(changelog, spec).unproven == ()
