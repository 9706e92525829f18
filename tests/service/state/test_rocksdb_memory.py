"""The memory that stores share: what their reads bring into it."""

from pathlib import Path

from forebay.state_store import CommittedOffset
from forebay.stored_keys import USER_TAG
from forebay.task_ids import TopicPartition
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks.restore_process import write_sst

TP = TopicPartition("log", 0)
KEYS = 400_000
"""Their Bloom filter alone takes half a megabyte."""


def key(n: int) -> bytes:
    return USER_TAG + b"%08d" % n


def opened(path: Path) -> tuple[RocksDbStore, RocksDbMemory]:
    memory = RocksDbMemory(64 << 20, 64 << 20)
    return RocksDbStore("counts", path, memory.options()), memory


def test_a_read_brings_no_whole_filter_into_the_cache(tmp_path: Path) -> None:
    rows = ((key(n), b"%d" % n) for n in range(KEYS))
    write_sst(tmp_path / "restored.sst", [list(rows)], TP, CommittedOffset(KEYS))
    store, _ = opened(tmp_path / "restored")
    store.ingest(tmp_path / "restored.sst", TP, CommittedOffset(KEYS))
    store.close()
    store, memory = opened(tmp_path / "restored")
    assert store.get(key(7)) == b"7"
    assert store.get(key(KEYS)) is None
    assert memory.block_cache_bytes < 200 << 10
    store.close()


def test_stores_opened_again_read_through_the_shared_cache(tmp_path: Path) -> None:
    """The options that RocksDB keeps in a directory have a cache of their own."""
    first, _ = opened(tmp_path / "store")
    for n in range(1_000):
        first.put(key(n), b"x" * 1_000)
    first.commit({TP: CommittedOffset(1)})
    first.close()
    again, memory = opened(tmp_path / "store")
    before = memory.block_cache_bytes
    for n in range(1_000):
        assert again.get(key(n)) == b"x" * 1_000
    assert memory.block_cache_bytes - before > 900_000
    again.close()
