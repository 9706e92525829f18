"""A file of a restore process meets a store that is elsewhere by now."""

from pathlib import Path

import pytest

from forebay.clock import boot_ms
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks.bulk_restore import Restoration, ingest
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.restore_process import RestoreReport, write_sst

TP = TopicPartition("log", 0)
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)
KEY = USER_TAG + b"k"
NEWER = CommittedOffset(1_000, 1_000)


@pytest.mark.parametrize(
    ("position_from", "log", "fits"), [(1_000, "log", True), (0, "log", False), (1_000, "another", False)]
)
def test_a_file_is_ingested_only_where_it_begins(tmp_path: Path, position_from: int, log: str, fits: bool):
    store = RocksDbStore("s", tmp_path / "s", RocksDbMemory(8 << 20, 8 << 20).options())
    store.put(KEY, b"1")
    store.commit({TP: NEWER})
    replica = Replica.opened(SPEC, TaskId(0, 0), store, "log")
    to = CommittedOffset(position_from + 500, position_from + 500)
    path = tmp_path / "file.sst"
    write_sst(path, [[(KEY, b"2")]], TP, to)
    report = RestoreReport(1, str(path), position_from, to.document(), 1, log)
    assert ingest(Restoration(replica, 1, boot_ms()), report) is fits
    assert (store.get(KEY), store.committed_offset(TP)) == ((b"2", to) if fits else (b"1", NEWER))
    assert not path.exists()
    store.close()
