"""A worker's topics at start, when the log answers, refuses, or is silent."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.errors import TopicMissing, TopicRefused
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology_file import parse_topology
from forebay_worker.changelog_topics import TopicCreation
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.rocksdb import RocksDbStore
from tests.support.cluster import wait_until
from tests.support.held_tasks import MEMORY

TOPOLOGY = parse_topology(
    {"application_id": "app", "subtopology": [{"name": "s", "partitions": 1, "store": [{"name": "a"}]}]}
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    directory = StateDirectory(tmp_path, "app")
    yield directory
    directory.close()


class Log:
    """Refuses every topic, once it is let answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.refuses = True

    def ensure(self, spec: StoreSpec, *, create: bool) -> None:
        self.answers.wait(30)
        if self.refuses:
            raise TopicRefused(f"The topic {spec.topic!r} would lose records.")


def test_a_topic_that_is_refused_at_once_ends_the_start(directory):
    log = Log()
    log.answers.set()
    topics = TopicCreation(log, TOPOLOGY, directory, create=True)
    with pytest.raises(TopicRefused):
        topics.start()
    topics.stop()


def test_unresponsive_log_delays_no_start(directory, monkeypatch):
    """A later refusal is reported."""
    monkeypatch.setattr("forebay_worker.changelog_topics._PATIENCE_S", 0.05)
    monkeypatch.setattr("forebay_worker.changelog_topics._RETRY_S", 0.05)
    log = Log()
    topics = TopicCreation(log, TOPOLOGY, directory, create=True)
    topics.start()
    assert topics.storage_fault is None
    log.answers.set()
    wait_until(lambda: topics.storage_fault is not None, "the refusal")
    log.refuses = False
    wait_until(lambda: topics.storage_fault is None, "its end")
    topics.stop()


class NewLog:
    """A log that was never reached before, and has no topics."""

    url = "kafka://b:1"

    def __init__(self) -> None:
        self.created: list[str] = []

    def ensure(self, spec: StoreSpec, *, create: bool) -> None:
        if not create:
            raise TopicMissing(f"There is no topic {spec.topic!r}.")
        self.created.append(spec.topic)


@pytest.mark.parametrize("has_content", [False, True], ids=["begun", "built"])
def test_a_store_begun_without_a_log_keeps_no_topic_from_being_created(directory, has_content):
    """One with content was built from a log that must be somewhere."""
    path = directory.store_path(TaskId(0, 0), "a")
    store = RocksDbStore("a", path, MEMORY.options())
    if has_content:
        store.commit({TopicPartition("app-a-changelog", 0): CommittedOffset(7)})
    store.close()
    log = NewLog()
    topics = TopicCreation(log, TOPOLOGY, directory, create=True)
    if has_content:
        with pytest.raises(TopicMissing, match="has state that was built from it"):
            topics.start()
    else:
        topics.start()
    topics.stop()
    assert log.created == ([] if has_content else ["app-a-changelog"])
