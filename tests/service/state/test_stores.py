"""Every store: whatever is put, deleted, committed, closed and opened, it holds what was committed."""

import errno
import os
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import DbClosedError

from forebay.errors import ForebayError, TopologyError
from forebay.log_epochs import OffsetAndEpoch
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.store_spec import StoreSpec
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite.batches import append_batch
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.state.checkpoint_file import CheckpointFile
from forebay_worker.state.checkpointed_store import CheckpointedStore
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.memory import MemoryStore
from forebay_worker.state.reserved_records import IDENTITY_KEY
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.state.store_factory import StoreFactory
from tests.support.cluster import wait_until
from tests.support.disks import fill, small_disk

TP, OTHER = TopicPartition("log", 0), TopicPartition("log", 1)
MEMORY = RocksDbMemory(8 << 20, 8 << 20)
KEYS = st.sampled_from([USER_TAG + key for key in (b"", b"a", b"a\x00", b"b", b"\xff")])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=3)),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("commit")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("kill")),
    ),
    max_size=25,
)


def run(steps: list[Any], store: Any, reopen: Any, kill: Any, persistent: bool) -> None:
    committed: dict[bytes, bytes] = {}
    pending: dict[bytes, bytes | None] = {}
    position = 0
    for step, *arguments in steps:
        if step == "put":
            store.put(*arguments)
            pending[arguments[0]] = arguments[1]
        elif step == "delete":
            store.delete(*arguments)
            pending[arguments[0]] = None
        elif step == "commit":
            position += 1
            store.commit({TP: CommittedOffset(position, position), OTHER: CommittedOffset(7)})
            for key, value in pending.items():
                committed.pop(key, None)
                if value is not None:
                    committed[key] = value
            pending = {}
        elif step == "flush":
            store.flush()
        else:
            if step == "kill":
                kill(store)
            else:
                store.close()
            store = reopen()
            pending = {}
            if not persistent:
                committed, position = {}, 0
        assert dict(store.scan(USER_TAG, END_OF_USER_KEYS)) == committed
        assert [key for key, _ in store.scan(USER_TAG, END_OF_USER_KEYS, reverse=True)] == sorted(committed)[::-1]
        assert store.get_many([USER_TAG + b"a", USER_TAG + b"b"]) == [
            committed.get(USER_TAG + b"a"),
            committed.get(USER_TAG + b"b"),
        ]
        found = store.committed_offset(TP)
        assert (found.position if found else 0) == position
        if position:
            assert store.committed_offset(OTHER).position == 7
    store.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_a_rocksdb_store_holds_what_was_committed(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("store") / "s"

    def open_store() -> RocksDbStore:
        return RocksDbStore("s", path, MEMORY.options())

    def kill(store: RocksDbStore) -> None:
        left = shutil.copytree(path, path.with_name("left"))
        store.close()
        shutil.rmtree(path)
        left.rename(path)

    run(steps, open_store(), open_store, kill, persistent=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_in_memory_store_holds_what_was_committed(steps):
    run(steps, MemoryStore("s"), lambda: MemoryStore("s"), MemoryStore.close, persistent=False)


class LegacyStore(MemoryStore):
    """A user's store that keeps content in a file of its own, and no offsets."""

    persistent = True
    manages_offsets = False

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self._path = path / "content"
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                key, value = line.split()
                self.put(bytes.fromhex(key), bytes.fromhex(value[1:]))
            self.commit({})

    def flush(self) -> None:
        rows = self.scan(b"", b"\xff")
        self._path.write_text("".join(f"{key.hex()} x{value.hex()}\n" for key, value in rows))

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        return None


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


def checkpointed(directory: Path, clock: list[float], end_offset: int = 0) -> CheckpointedStore:
    (directory / "rocksdb" / "s").mkdir(parents=True, exist_ok=True)
    inner = LegacyStore("s", directory / "rocksdb" / "s")
    return CheckpointedStore(inner, CheckpointFile.of(directory), TP, end_offset, 300_000, lambda: clock[0])


def test_checkpoint_interval_is_time_records_or_close(tmp_path, clock):
    """A checkpoint follows after its interval, after 10,000 records and at close."""
    store, file = checkpointed(tmp_path, clock), CheckpointFile.of(tmp_path)
    store.put(USER_TAG + b"a", b"1")
    store.commit({TP: CommittedOffset(1, 1)})
    assert file.read() == {}
    clock[0] += 300_000
    store.commit({TP: CommittedOffset(2, 2)})
    assert file.read() == {TP: 2}
    for i in range(10_000):
        store.put(USER_TAG + b"%d" % i, b"1")
    store.commit({TP: CommittedOffset(10_002, 10_002)})
    assert file.read() == {TP: 10_002}
    store.commit({TP: CommittedOffset(10_003, 10_003)})
    store.close()
    assert file.read() == {TP: 10_003}


def test_crashed_legacy_store_is_consistent_at_the_end_only(tmp_path, clock):
    """Before the end offset at open, its content matches no point of history."""
    store = checkpointed(tmp_path, clock)
    clock[0] += 300_000
    store.commit({TP: CommittedOffset(5, 5)})
    # No close: the process was killed, its content may be ahead of the checkpoint.
    reopened = checkpointed(tmp_path, clock, end_offset=40)
    found = reopened.committed_offset(TP)
    assert (found.position, found.consistent_position, found.pending_end) == (5, None, 40)


WHOLE = CommittedOffset(
    5,
    as_of_epoch_ms={"alive": 9_000.0, "silent": 1_000.0},
    stream_time_ms=7_000,
    queries={"alive": "q1", "silent": "q2"},
    misplaced_keys=["6b"],
    partitions_found=2,
    tombstone_floor=3,
)


def test_legacy_store_keeps_its_commit_over_a_restart(tmp_path, clock):
    store = checkpointed(tmp_path, clock)
    store.commit({TP: WHOLE})
    store.close()
    found = checkpointed(tmp_path, clock).committed_offset(TP)
    assert found._replace(pending_end=None, replay_since_epoch_ms=None) == WHOLE


def test_metadata_of_a_later_offset_proves_nothing(tmp_path, clock):
    """The worker was killed between writing the metadata and the checkpoint."""
    store = checkpointed(tmp_path, clock)
    store.commit({TP: WHOLE._replace(position=4)})
    store.close()
    before = CheckpointFile.of(tmp_path).path.read_text()
    again = checkpointed(tmp_path, clock)
    again.commit({TP: WHOLE})
    again.close()
    # As if killed between the two files.
    CheckpointFile.of(tmp_path).path.write_text(before)
    found = checkpointed(tmp_path, clock).committed_offset(TP)
    assert found.position == 4
    assert found.as_of_epoch_ms == {"alive": None, "silent": None}
    assert (found.stream_time_ms, found.misplaced_keys, found.partitions_found) == (7_000, ["6b"], 2)
    assert found.tombstone_floor == 0


def test_checkpoint_is_as_old_as_the_last_commit(tmp_path, clock):
    """A start without the log does not make it younger."""
    store, file = checkpointed(tmp_path, clock), CheckpointFile.of(tmp_path)
    store.commit({TP: CommittedOffset(5, 5)})
    store.close()
    two_days_ago_ms = file.moment_epoch_ms() - 2 * 86_400_000
    os.utime(file.path, (two_days_ago_ms / 1000, two_days_ago_ms / 1000))
    # A worker that cannot reach the log is started and stopped.
    checkpointed(tmp_path, clock).close()
    assert file.moment_epoch_ms() == pytest.approx(two_days_ago_ms, abs=1_000)
    assert checkpointed(tmp_path, clock).committed_offset(TP).replay_since_epoch_ms == file.moment_epoch_ms()


def test_checkpoint_age_is_that_of_its_oldest_line(tmp_path):
    other = TopicPartition("other", 0)
    file = CheckpointFile.of(tmp_path)
    file.add(TP, 5, 1_000_000.0)
    file.add(other, 7, 9_000_000.0)
    assert file.moment_epoch_ms() == 1_000_000.0
    file.add(TP, 6, 5_000_000.0)
    assert file.moment_epoch_ms() == 5_000_000.0
    # Another process does not know how old the other line is.
    CheckpointFile.of(tmp_path).add(other, 8, 9_500_000.0)
    assert file.moment_epoch_ms() == 5_000_000.0


def test_store_closes_though_its_checkpoint_fails(tmp_path, clock, monkeypatch):
    store = checkpointed(tmp_path, clock)
    store.commit({TP: CommittedOffset(5, 5)})
    closed = []
    monkeypatch.setattr(store._inner, "close", lambda: closed.append(True))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CheckpointFile, "add", refuse)
    with pytest.raises(OSError, match="No space left"):
        store.close()
    assert closed


def test_the_lines_that_are_kept_stay_as_old_as_they_are(tmp_path):
    file = CheckpointFile.of(tmp_path)
    file.add(TP, 5, 1_000_000.0)
    file.add(TopicPartition("other", 0), 7, 1_000_000.0)
    file.keep({TP.topic})
    assert (file.read(), file.moment_epoch_ms()) == ({TP: 5}, 1_000_000.0)


@pytest.fixture
def opener(tmp_path: Path) -> StoreFactory:
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("log", 2)
    return StoreFactory(StateDirectory(tmp_path / "state", "app"), changelog, MEMORY, 300_000)


SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)
TASK = TaskId(0, 0)


@pytest.mark.parametrize("supplier", ["rocksdb", "legacy"])
@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        (
            {"kind": "window", "window_size_ms": 1, "retention_ms": 1},
            "kind 'key-value' instead of 'window'; a store",
        ),
        ({"key": "bytes"}, "key 'string' instead of 'bytes'; a store of another kind or codec needs a name of"),
        ({"value": "string"}, "value 'json' instead of 'string'"),
        ({"topic": "other"}, "topic 'log' instead of 'other'"),
        ({"partition": 1}, "partition 0 instead of 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_store_of_another_identity_is_set_aside(opener, legacy, caplog, supplier, changed, reported):
    """A store built with another specification is begun anew."""
    opener.changelog.ensure_topic("other", 1)
    spec = SPEC if supplier == "rocksdb" else legacy
    store = opener.open(TASK, spec).store
    store.put(USER_TAG + b"a", b"1")
    store.commit({TP: CommittedOffset(1, 1)})
    store.close()
    again = opener.open(TASK, spec).store
    assert (again.get(USER_TAG + b"a"), opener.directory.set_asides()) == (b"1", [])
    again.close()
    task = TaskId(0, changed.get("partition", 0))
    if task != TASK:
        (opener.directory.path / str(TASK)).rename(opener.directory.path / str(task))
    other = opener.open(
        task, replace(spec, **{name: value for name, value in changed.items() if name != "partition"})
    )
    assert other.store.get(USER_TAG + b"a") is None
    assert other.store.committed_offset(TopicPartition(changed.get("topic", "log"), task.partition)) is None
    assert [(found, name) for found, name, _ in opener.directory.set_asides()] == [(task, "s")]
    assert reported in caplog.text
    other.store.close()


def test_opened_store_names_the_log_it_was_built_from(opener):
    """The log was reset meanwhile."""
    opened = opener.open(TASK, SPEC)
    opened.store.commit({TP: CommittedOffset(1, 1)})
    opened.store.close()
    opener.changelog.reset(SPEC)
    again = opener.open(TASK, SPEC)
    assert again.log == opened.log != opener.changelog.identity("log", 0)
    again.store.close()


def test_a_copy_is_restored_only_when_the_log_has_confirmed_it(opener):
    """It may be of a log that is no more, so a missing key in it proves nothing yet."""
    opened = opener.open(TASK, SPEC)
    path = opener.directory.store_path(TASK, "s")
    opened.store.commit({TP: CommittedOffset(5, 5, restored=True)})
    opened.store.close()
    with pytest.raises(StoreCorrupted, match="where in its log"):
        opener.check_copy(path, TASK, SPEC)
    again = opener.open(TASK, SPEC).store
    again.commit({TP: CommittedOffset(5, 5, restored=True, proof=OffsetAndEpoch(5, 0))})
    again.close()
    assert not opener.check_copy(path, TASK, SPEC).restored
    copied = opener.open(TASK, SPEC).store
    found = copied.committed_offset(TP)
    assert (found.position, found.restored) == (5, False)
    copied.close()


def test_unreadable_store_is_set_aside_and_begun_anew(opener):
    opened = opener.open(TASK, SPEC)
    opened.store.put(USER_TAG + b"a", b"1")
    opened.store.commit({TP: CommittedOffset(1, 1)})
    opened.store.close()
    path = opener.directory.store_path(TASK, "s")
    (path / "CURRENT").write_text("garbage")
    again = opener.open(TASK, SPEC)
    assert again.store.committed_offset(TP) is None
    assert [(task, store) for task, store, _ in opener.directory.set_asides()] == [(TASK, "s")]
    again.store.close()


def test_store_with_an_unreadable_identity_is_set_aside(opener):
    """The store that replaces it is kept at the next start."""
    path = opener.directory.store_path(TASK, "s")
    store = RocksDbStore("s", path, MEMORY.options())
    store.commit({TP: CommittedOffset(1, 1)})
    store._db.put(IDENTITY_KEY, b'{"log":"l","what a later version has":1}')
    store.close()
    opened = opener.open(TASK, SPEC)
    assert opened.store.committed_offset(TP) is None
    assert len(opener.directory.set_asides()) == 1
    # Nothing has the old one open, to write into the directory of the new one.
    opened.store.commit({TP: CommittedOffset(1, 1)})
    opened.store.close()
    again = opener.open(TASK, SPEC)
    assert again.store.committed_offset(TP) == CommittedOffset(1, 1)
    again.store.close()


def test_a_supplied_store_that_cannot_be_identified_is_closed(opener, legacy, monkeypatch):
    closed = []

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("forebay_worker.state.store_factory.write_durably", refuse)
    monkeypatch.setattr(LegacyStore, "close", lambda self: closed.append(self.name))
    with pytest.raises(OSError, match="No space left"):
        opener.open(TASK, legacy)
    assert closed == ["s"]


def test_old_checkpoint_is_adopted_once_with_its_store(opener):
    path = opener.directory.store_path(TASK, "s")
    checkpoint = CheckpointFile.of(path.parents[1])
    path.mkdir(parents=True)
    checkpoint.write({TP: 12})
    # A line without its store: an empty store must not resume at an offset that it doesn't have.
    opened = opener.open(TASK, SPEC)
    assert opened.store.committed_offset(TP) is None
    assert checkpoint.read() == {}
    opened.store.close()
    # Content without offset or identity, as a store that did not manage them left it.
    old = RocksDbStore("s", path, MEMORY.options())
    old._db.put(USER_TAG + b"a", b"1")
    old.close()
    checkpoint.write({TP: 12})
    again = opener.open(TASK, SPEC)
    assert again.store.committed_offset(TP).position == 12
    assert checkpoint.read() == {}
    again.store.close()


def test_rocksdbs_own_log_does_not_grow_with_every_flush(tmp_path):
    store = RocksDbStore("s", tmp_path / "s", MEMORY.options())
    for i in range(100):
        store.put(USER_TAG + b"k", b"%d" % i)
        store.commit({TopicPartition("t", 0): CommittedOffset(i, i)})
        store.flush()
    store.close()
    assert sum(log.stat().st_size for log in (tmp_path / "s").glob("LOG*")) < 400_000


def test_store_with_a_failed_log_is_read_and_recovers(tmp_path):
    """It is written to again once the disk has room."""
    with small_disk(tmp_path / "disk") as disk:
        refuse_and_recover(disk)


def refuse_and_recover(disk: Path) -> None:
    store = RocksDbStore("s", disk / "s", MEMORY.options())
    store.put(USER_TAG + b"a", b"1")
    store.commit({TP: CommittedOffset(1, 1)})
    filler = fill(disk)
    with pytest.raises(Exception, match="No space left"):  # noqa: PT012
        for _ in range(4):
            store.put(USER_TAG + b"b", b"x" * 3000)
            store.commit({TP: CommittedOffset(2, 2)})
    with pytest.raises(OSError, match="No space left"):
        store.commit({TP: CommittedOffset(3, 3)})
    assert store.get(USER_TAG + b"a") == b"1"
    filler.unlink()
    store.put(USER_TAG + b"c", b"3")
    store.commit({TP: CommittedOffset(3, 3)})
    assert store.get(USER_TAG + b"c") == b"3"
    store.close()
    again = RocksDbStore("s", disk / "s", MEMORY.options())
    assert [again.get(USER_TAG + key) for key in (b"a", b"c")] == [b"1", b"3"]
    assert again.committed_offset(TP).position == 3
    again.close()


def test_store_reopens_while_others_read_it(tmp_path):
    """A read of many keys gets all of them or none."""
    keys = [USER_TAG + b"%d" % i for i in range(20_000)]
    store = RocksDbStore("s", tmp_path / "s", MEMORY.options())
    for key in keys:
        store.put(key, b"value")
    store.commit({TP: CommittedOffset(len(keys))})
    ended = threading.Event()
    answers: list[int] = []

    def read() -> None:
        while not ended.is_set():
            try:
                answers.append(store.get_many(keys).count(b"value"))
            except (DbClosedError, RuntimeError):
                answers.append(0)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(5):
            answered = len(answers) + 2
            wait_until(lambda answered=answered: len(answers) > answered, "reads going on")
            store.close()
            store = RocksDbStore("s", tmp_path / "s", MEMORY.options())
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert set(answers) <= {0, len(keys)}
    assert store.get_many(keys[:2]) == [b"value"] * 2
    store.close()
    with pytest.raises(DbClosedError):
        store.get(keys[0])
    store.close()


def test_failed_commit_that_was_written_is_continued(tmp_path):
    """A refused commit may have been written, and the store goes on from there."""
    store = RocksDbStore("s", tmp_path / "s", MEMORY.options())
    store.commit({TP: CommittedOffset(1, 1)})
    store.put(USER_TAG + b"a", b"2")
    store.commit({TP: CommittedOffset(2, 2)})
    # As if that had failed after it was written.
    store._offsets, store._refused = {TP: CommittedOffset(1, 1)}, True
    with pytest.raises(ForebayError, match="was written after all"):
        store.commit({})
    assert store.committed_offset(TP) == CommittedOffset(2, 2)
    store.commit({TP: CommittedOffset(3, 3)})
    assert (store.get(USER_TAG + b"a"), store.committed_offset(TP).position) == (b"2", 3)
    store.close()


def test_old_position_file_is_adopted_after_a_relocation(opener):
    """It may lie where its store was before."""
    path = opener.directory.store_path(TASK, "s")
    old = RocksDbStore("s", path, MEMORY.options())
    old._db.put(USER_TAG + b"a", b"1")
    old.close()
    for task, offset in (("1_0", 12), ("1_1", 99)):
        (opener.directory.path / task).mkdir()
        line = TopicPartition("log", TaskId.parse(task).partition)
        CheckpointFile(opener.directory.path / task / "s.position").write({line: offset})
    opened = opener.open(TASK, SPEC)
    assert opened.store.committed_offset(TP).position == 12
    assert [p.parent.name for p in opener.directory.path.glob("*/s.position")] == ["1_1"]
    opened.store.close()


@pytest.fixture
def legacy(monkeypatch) -> StoreSpec:
    monkeypatch.setattr("forebay_worker.state.store_factory._supplier", lambda supplier: LegacyStore)
    return StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1, supplier="legacy")


@pytest.mark.parametrize("supplier", ["rocksdb", "legacy"])
@pytest.mark.parametrize("refused", ["remove", "read"])
def test_offset_without_its_store_is_not_resumed(opener, legacy, monkeypatch, supplier, refused):
    """This holds although the first opening of the store fails."""
    spec = SPEC if supplier == "rocksdb" else legacy
    checkpoint = CheckpointFile.of(opener.directory.path / str(TASK))
    checkpoint.path.parent.mkdir()
    checkpoint.write({TP: 5})
    own, refusals = getattr(CheckpointFile, refused), [OSError(errno.EIO, os.strerror(errno.EIO))]

    def refuse(*arguments: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return own(*arguments)

    monkeypatch.setattr(CheckpointFile, refused, refuse)
    with pytest.raises(OSError, match="Input/output"):
        opener.open(TASK, spec)
    opened = opener.open(TASK, spec)
    assert opened.store.committed_offset(TP) is None
    opened.store.close()


@pytest.mark.parametrize("seed", range(30))
def test_killed_legacy_store_equals_the_log_after_replay(opener, legacy, monkeypatch, seed):
    chance = random.Random(seed)
    monkeypatch.setattr(
        "forebay_worker.state.checkpointed_store.RECORDS_PER_CHECKPOINT", chance.choice([3, 7, 1_000])
    )
    keys = [USER_TAG + b"%d" % number for number in range(5)]
    log = [(chance.choice(keys), chance.choice([None, b"%d" % offset])) for offset in range(60)]
    content: dict[bytes, bytes | None] = dict(log)

    def reopened() -> tuple[Any, int]:
        store = replace(opener, _checkpoints={}).open(TASK, legacy).store
        committed = store.committed_offset(TP)
        return store, committed.position if committed else 0

    store, position = reopened()
    while position < len(log):
        for key, value in log[position : position + chance.randrange(6)]:
            store.delete(key) if value is None else store.put(key, value)
            position += 1
        store.commit({TP: CommittedOffset(position, position)})
        step = chance.randrange(10)
        if step < 2:
            store.flush()
        elif step == 2:
            store.close()
        if 2 <= step < 5:
            # Unless it was closed, it was killed.
            store, position = reopened()
    assert dict(store.scan(USER_TAG, END_OF_USER_KEYS)) == {k: v for k, v in content.items() if v is not None}
    store.close()


def test_an_offset_is_migrated_once_and_lost_by_no_crash(opener, monkeypatch):
    rows = [(b"k", b"1", 0)] * 9
    append_batch(opener.changelog.path(TP), rows, writer="s", query_id="q", batch_id=0, write_name="s")
    store = RocksDbStore("s", opener.directory.store_path(TASK, "s"), MEMORY.options())
    store._db.put(USER_TAG + b"a", b"1")
    store.close()
    checkpoint = CheckpointFile.of(opener.directory.path / str(TASK))
    checkpoint.write({TP: 5, OTHER: 7})
    with monkeypatch.context() as crashing:
        crashing.setattr(RocksDbStore, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            opener.open(TASK, SPEC)
    assert checkpoint.read() == {TP: 5, OTHER: 7}
    store = opener.open(TASK, SPEC).store
    # Its content may be ahead of the offset, as far as the log goes now.
    found = store.committed_offset(TP)
    assert (found.position, found.consistent_position, found.pending_end) == (5, None, 9)
    assert (store.get(USER_TAG + b"a"), checkpoint.read()) == (b"1", {OTHER: 7})
    store.close()


def test_malformed_checkpoint_costs_a_rebuild(opener, caplog):
    """No store gets a wrong offset."""
    path = opener.directory.store_path(TASK, "s")
    store = RocksDbStore("s", path, MEMORY.options())
    store._db.put(USER_TAG + b"a", b"1")
    store.close()
    CheckpointFile.of(opener.directory.path / str(TASK)).path.write_text("0\n1\nlog 0 5 5\n")
    store = opener.open(TASK, SPEC).store
    assert (store.committed_offset(TP), store.get(USER_TAG + b"a")) == (None, None)
    assert len(opener.directory.set_asides()) == 1
    assert "line 3" in caplog.text
    store.close()


def test_damaged_checkpoint_is_written_again(opener, legacy, caplog):
    store = opener.open(TASK, legacy).store
    store.commit({TP: CommittedOffset(7, 7)})
    checkpoint = CheckpointFile.of(opener.directory.path / str(TASK))
    checkpoint.path.write_text("damaged")
    store.close()
    assert checkpoint.read() == {TP: 7}
    assert "line 1" in caplog.text


def test_supplied_store_with_a_damaged_identity_is_set_aside(opener, legacy):
    store = opener.open(TASK, legacy).store
    store.commit({TP: CommittedOffset(7, 7)})
    store.close()
    (opener.directory.store_path(TASK, "s") / ".forebay-identity.json").write_text("")
    again = opener.open(TASK, legacy).store
    assert again.committed_offset(TP) is None
    assert len(opener.directory.set_asides()) == 1
    again.close()


def test_a_store_comes_from_the_package_that_supplies_it(opener, tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package / "supplied-1.dist-info").mkdir(parents=True)
    (package / "supplied-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: supplied\nVersion: 1\n"
    )
    (package / "supplied-1.dist-info" / "entry_points.txt").write_text("[forebay.stores]\nkept = supplied:Kept\n")
    (package / "supplied.py").write_text(
        "from forebay_worker.state.memory import MemoryStore\n"
        "class Kept(MemoryStore):\n"
        "    def __init__(self, name, path):\n"
        "        super().__init__(name)\n"
        "        self.path = path\n"
    )
    monkeypatch.syspath_prepend(package)
    topology = parse_topology(
        {
            "application_id": "app",
            "subtopology": [{"name": "s", "partitions": 1, "store": [{"name": "s", "supplier": "kept"}]}],
        }
    )
    store = opener.open(TASK, topology.stores["s"]).store
    assert (type(store).__name__, store.path) == ("Kept", opener.directory.store_path(TASK, "s"))


def test_a_supplied_store_whose_content_is_damaged_is_set_aside(opener, legacy, caplog):
    store = opener.open(TASK, legacy).store
    store.put(USER_TAG + b"k", b"1")
    store.commit({TP: CommittedOffset(7, 7)})
    store.close()
    (opener.directory.store_path(TASK, "s") / "content").write_text("damaged")
    again = opener.open(TASK, legacy).store
    assert (again.committed_offset(TP), again.get(USER_TAG + b"k")) == (None, None)
    assert len(opener.directory.set_asides()) == 1
    assert "it cannot be opened" in caplog.text
    again.close()


@pytest.mark.parametrize("checkpoint", [None, "0\n1\nlog 0 -4\n", "not a checkpoint"])
def test_records_without_a_checkpoint_are_set_aside(opener, legacy, checkpoint):
    """A deleted key would come back otherwise."""
    task = TaskId(0, 0)
    store = opener.open(task, legacy).store
    store.put(USER_TAG + b"deleted since", b"1")
    store.commit({TP: CommittedOffset(7, 7)})
    store.flush()
    # Killed before the first checkpoint.
    if checkpoint is not None:
        (opener.directory.path / "0_0" / ".checkpoint").write_text(checkpoint)
    store = opener.open(task, legacy).store
    assert store.get(USER_TAG + b"deleted since") is None
    assert store.committed_offset(TP) is None
    assert len(opener.directory.set_asides()) == 1
    store.commit({TP: CommittedOffset(7, 7)})
    store.put(USER_TAG + b"new", b"1")
    store.commit({TP: CommittedOffset(8, 8)})
    store.close()
    store = opener.open(task, legacy).store
    assert (store.get(USER_TAG + b"new"), store.committed_offset(TP).position) == (b"1", 8)


def test_an_empty_store_without_an_offset_is_begun_with(opener, legacy):
    opener.open(TaskId(0, 0), legacy).store.close()
    opener.open(TaskId(0, 0), legacy).store.close()
    assert not opener.directory.set_asides()


@pytest.mark.parametrize("manages_offsets", [False, True])
def test_a_store_that_keeps_its_records_elsewhere_is_refused(
    opener, legacy, tmp_path, monkeypatch, manages_offsets
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "content").write_text(f"{(USER_TAG + b'k').hex()} x31\n")

    def elsewhere(name: str, path: Path) -> LegacyStore:
        return LegacyStore(name, tmp_path / "elsewhere")

    monkeypatch.setattr("forebay_worker.state.store_factory._supplier", lambda supplier: elsewhere)
    monkeypatch.setattr(LegacyStore, "manages_offsets", manages_offsets)
    with pytest.raises(TopologyError, match=r"'s' has records although .* was just created.*'legacy' must keep"):
        opener.open(TaskId(0, 0), legacy)
    assert not opener.directory.set_asides()


def test_rocksdb_records_without_an_offset_are_set_aside(tmp_path, opener):
    spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)
    path = opener.directory.store_path(TaskId(0, 0), "s")
    store = RocksDbStore("s", path, MEMORY.options())
    store.put(USER_TAG + b"deleted since", b"1")
    store.commit({})
    store.close()
    store = opener.open(TaskId(0, 0), spec).store
    assert store.get(USER_TAG + b"deleted since") is None
    assert len(opener.directory.set_asides()) == 1
    store.close()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    before=st.dictionaries(st.integers(0, 99), st.binary(max_size=2), min_size=20),
    changes=st.lists(st.tuples(st.integers(0, 119), st.none() | st.binary(max_size=2)), max_size=60),
    at=st.integers(0, 60),
    reverse=st.booleans(),
)
def test_in_memory_scan_is_a_snapshot(before, changes, at, reverse):
    """The scan sees the store as it was at its first step."""
    store = MemoryStore("s")
    for number, value in before.items():
        store.put(USER_TAG + b"%03d" % number, value)
    store.commit({})
    expected = sorted(((USER_TAG + b"%03d" % n, v) for n, v in before.items() if 5 <= n < 90), reverse=reverse)
    scan = store.scan(USER_TAG + b"005", USER_TAG + b"090", reverse=reverse)
    found = [pair for _, pair in zip(range(at + 1), scan, strict=False)]
    for number, value in changes:
        if value is None:
            store.delete(USER_TAG + b"%03d" % number)
        else:
            store.put(USER_TAG + b"%03d" % number, value)
        store.commit({})
    found += list(scan)
    assert found == expected
    assert not store._scans


def test_scan_collected_during_a_commit_does_not_deadlock():
    store = MemoryStore("s")
    store.put(USER_TAG + b"a", b"1")
    store.commit({})
    scan = store.scan(USER_TAG, END_OF_USER_KEYS)
    next(scan)

    def end_it() -> None:
        # As a commit does while it writes.
        with store._lock:
            scan.close()

    thread = threading.Thread(target=end_it, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
