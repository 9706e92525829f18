"""An offset of an old ``.checkpoint`` meets a store that manages its own."""

from pathlib import Path

from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.state.checkpoint_file import CheckpointFile
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.memory import MemoryStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.state.store_factory import StoreFactory

TP = TopicPartition("log", 0)
TASK = TaskId(0, 0)


class OwnOffsets(MemoryStore):
    """A user's store that outlives its process, and has an offset with its content."""

    persistent = True

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self.put(USER_TAG + b"k", b"1")
        self.commit({TP: CommittedOffset(8, 8)})


def test_a_committed_offset_beats_an_old_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("forebay_worker.state.store_factory._supplier", lambda supplier: OwnOffsets)
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("log", 1)
    directory = StateDirectory(tmp_path / "state", "app")
    opener = StoreFactory(directory, changelog, RocksDbMemory(8 << 20, 8 << 20), 300_000)
    directory.store_path(TASK, "s").mkdir(parents=True)
    checkpoint = CheckpointFile.of(directory.path / str(TASK))
    checkpoint.write({TP: 5})
    spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1, supplier="own")
    store = opener.open(TASK, spec).store
    assert store.committed_offset(TP) == CommittedOffset(8, 8)
    # The line must not be found by a store that is begun in its place.
    assert checkpoint.read() == {}
    store.close()
    directory.close()
