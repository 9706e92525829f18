"""What a tap asks an object store for: requests cost money, and those that list cost most."""

from collections import Counter

import pytest

from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.store_tap import StoreTap
from tests.support.cluster import wait_until
from tests.support.object_store import UploadedQuery
from tests.support.running_query import content, store

NOW_MS = 1_750_000_000_000
COUNT = store(spark_state={"fields": [{"name": "count", "position": 0, "function": "count"}]})


@pytest.fixture
def uploaded(object_store, monkeypatch, spark_4_0):
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return lambda name: UploadedQuery(object_store, spark_4_0.path(name), name)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("aggregation-default", COUNT),
        ("aggregation-format2", COUNT),
        ("ledger-format2", store(spark_state={"variable": "total"})),
    ],
)
def test_a_batch_is_followed_without_a_list(object_store, uploaded, name, spec, tmp_path):
    """Each of its files is read once, for which pyarrow asks for its size first."""
    query, changelog = uploaded(name), SqliteChangelog(tmp_path)
    changelog.ensure(spec)
    query.end(0)
    checkpoint = Checkpoint.open(query.url)
    tap = StoreTap(checkpoint, spec, changelog, lambda: NOW_MS)
    tap.begin(0)
    assert not checkpoint.is_committed(1)
    polls = [(request.operation, request.key) for request in object_store.requests(name)][-1:]
    assert polls == [("HEAD", f"{name}/commits/1")]
    query.end(1)
    assert checkpoint.is_committed(1)
    assert tap.has_batch()
    tap.follow(1)
    requested = Counter(request.operation for request in object_store.requests(name))
    partitions = 2
    assert requested == {"HEAD": 9 + partitions, "GET": 6 + partitions}
    assert content(changelog, spec)
    assert checkpoint.is_unchanged(1)
    assert [(request.operation, request.key) for request in object_store.requests(name)] == [
        ("HEAD", f"{name}/commits/1")
    ]


def test_batch_that_was_run_again_in_a_bucket_is_noticed(uploaded, tmp_path):
    """Its commit has the same content. S3 keeps times in seconds."""
    query, changelog = uploaded("aggregation-changelog"), SqliteChangelog(tmp_path)
    changelog.ensure(COUNT)
    query.end(0)
    tap = StoreTap(Checkpoint.open(query.url), COUNT, changelog, lambda: NOW_MS)
    tap.begin(0)
    assert tap.has_batch()

    def is_noticed() -> bool:
        query.end(0)
        return not tap.has_batch()

    wait_until(is_noticed, "another time of the commit")
