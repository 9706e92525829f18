"""Kills between durable steps: what a later start finds is from before or from after, never from between."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest

from forebay.clock import epoch_ms
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.state.checkpoint_file import CheckpointFile
from forebay_worker.state.checkpointed_store import CheckpointedStore
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.fsync import remove_durably, write_durably
from forebay_worker.state.memory import MemoryStore
from forebay_worker.state.offsets_file import OffsetCache, read_positions, record_positions
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.task_cleanup import TaskCleanup
from tests.support.held_tasks import MEMORY, TASKS, TOPOLOGY, fill, make_changelog, offsets
from tests.support.kill_points import killed_before

TASK = TASKS[2]
TP = TopicPartition("log", 0)
OTHER = TopicPartition("other", 0)
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)
AN_HOUR_MS = 3_600_000


def kills(tmp_path: Path, act: Callable[[Path], object], prepare: Callable[[Path], object]) -> Iterator[Path]:
    """What a kill before each step leaves, and last what is there without one."""
    for number in itertools.count():
        place = tmp_path / f"kill-{number}"
        place.mkdir()
        prepare(place)
        killed = killed_before(number, lambda: act(place))  # noqa: B023
        yield place
        if not killed:
            return


def test_a_file_is_the_old_or_the_new_one(tmp_path):
    left = [
        (place / "file").read_text()
        for place in kills(
            tmp_path,
            lambda place: write_durably(place / "file", "new"),
            lambda place: (place / "file").write_text("old"),
        )
    ]
    assert set(left) == {"old", "new"}
    assert left[-1] == "new"


def test_a_file_is_there_or_gone(tmp_path):
    prepare = lambda place: (place / "file").write_text("old")  # noqa: E731
    left = [(place / "file").exists() for place in kills(tmp_path, lambda p: remove_durably(p / "file"), prepare)]
    assert left[-1] is False


@pytest.mark.parametrize("change", ["add", "remove"])
def test_a_checkpoint_is_the_old_or_the_new_one_and_never_looks_younger(tmp_path, change):
    """What a line's age says of deletions that the log has forgotten since would else be wrong."""
    old_epoch_ms = epoch_ms() - AN_HOUR_MS
    before, after = {TP: 5, OTHER: 7}, {OTHER: 7} if change == "remove" else {OTHER: 7, TP: 9}

    def prepare(place: Path) -> None:
        CheckpointFile.of(place).write(before)
        os.utime(place / ".checkpoint", (old_epoch_ms / 1000, old_epoch_ms / 1000))

    def act(place: Path) -> None:
        checkpoint = CheckpointFile.of(place)
        if change == "remove":
            checkpoint.remove(TP)
        else:
            checkpoint.add(TP, 9, epoch_ms())

    for place in kills(tmp_path, act, prepare):
        left = CheckpointFile.of(place)
        assert left.read() in (before, after)
        assert left.moment_epoch_ms() == pytest.approx(old_epoch_ms, abs=1)
    assert left.read() == after


class FlushedStore(MemoryStore):
    """A user's store without offsets, of which a crash leaves what it has flushed."""

    persistent = True
    manages_offsets = False
    flushed = 0

    def flush(self) -> None:
        self.flushed = len(list(self.scan(b"", b"\xff")))


def test_a_checkpoint_is_never_ahead_of_its_store(tmp_path):
    stores: list[FlushedStore] = []

    def act(place: Path) -> None:
        stores.append(FlushedStore("s"))
        (place / "rocksdb/s").mkdir(parents=True)
        store = CheckpointedStore(stores[-1], CheckpointFile.of(place), TP, 3, 0)
        for offset in range(3):
            store.put(USER_TAG + b"%d" % offset, b"1")
            store.commit({TP: CommittedOffset(offset + 1)})

    for place in kills(tmp_path, act, lambda place: None):
        flushed = stores[-1].flushed if stores else 0
        assert CheckpointFile.of(place).read().get(TP, 0) <= flushed
    assert CheckpointFile.of(place).read() == {TP: 3}


@pytest.fixture
def log(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("log", 1)
    return changelog


def opened_offset(place: Path, log: SqliteChangelog) -> CommittedOffset | None:
    directory = StateDirectory(place, "app")
    try:
        store = StoreFactory(directory, log, MEMORY, 300_000).open(TaskId(0, 0), SPEC).store
        offset = store.committed_offset(TP)
        store.close()
        return offset
    finally:
        directory.close()


def add_old_line(place: Path) -> None:
    """As of a version whose stores did not manage their offsets."""
    StateDirectory(place, "app").close()
    task_path = place / "app/0_0"
    task_path.mkdir(parents=True, exist_ok=True)
    CheckpointFile.of(task_path).add(TP, 5)


def test_an_offset_that_migrates_is_in_the_store_before_its_line_is_gone(tmp_path, log):
    def prepare(place: Path) -> None:
        opened_offset(place, log)
        add_old_line(place)

    for place in kills(tmp_path, lambda place: opened_offset(place, log), prepare):
        offset = opened_offset(place, log)
        assert offset is not None
        assert offset.position == 5
    assert CheckpointFile.of(place / "app/0_0").read() == {}


def test_an_empty_store_is_never_at_the_offset_of_one_that_is_gone(tmp_path, log):
    for place in kills(tmp_path, lambda place: opened_offset(place, log), add_old_line):
        assert opened_offset(place, log) is None


def test_recorded_offsets_are_those_of_stores_that_are_there(tmp_path):
    """A store is deleted, and the offsets are recorded again."""
    changelog = make_changelog(tmp_path)
    positions = {task: {"a": offset} for task, offset in offsets().items()}
    kept = {task: stores for task, stores in positions.items() if task != TASK}

    def prepare(place: Path) -> None:
        fill(place, changelog)
        directory = StateDirectory(place / "state", "app")
        record_positions(directory, TOPOLOGY, positions)
        directory.close()

    def act(place: Path) -> None:
        directory = StateDirectory(place / "state", "app")
        try:
            directory.delete_store(TASK, "a")
            record_positions(directory, TOPOLOGY, kept)
        finally:
            directory.close()

    for place in kills(tmp_path, act, prepare):
        directory = StateDirectory(place / "state", "app")
        assert read_positions(directory, TOPOLOGY) in (positions, kept)
        directory.close()


def test_a_released_task_is_whole_or_gone(tmp_path):
    """A later start finishes what a killed one began to delete."""
    changelog = make_changelog(tmp_path)
    fill(tmp_path, changelog)
    whole = {task: {"a": offset} for task, offset in offsets().items()}

    def cleanup(directory: StateDirectory) -> TaskCleanup:
        on_disk = OffsetCache()
        on_disk.load(read_positions(directory, TOPOLOGY))
        released = TaskCleanup(directory, TOPOLOGY, on_disk, delay_ms=0)
        released.add(TASK)
        return released

    def act(place: Path) -> None:
        directory = StateDirectory(place / "state", "app")
        try:
            cleanup(directory).delete_due([])
        finally:
            directory.close()

    for place in kills(tmp_path, act, lambda place: copytree(tmp_path / "state", place / "state")):
        directory = StateDirectory(place / "state", "app")
        found = read_positions(directory, TOPOLOGY)
        assert found in (whole, {task: stores for task, stores in whole.items() if task != TASK})
        cleanup(directory).delete_due([])
        directory.delete_leftovers()
        assert list((directory.path / str(TASK)).rglob("*.sst")) == []
        directory.close()
    assert not (place / f"state/app/{TASK}").exists()
