"""The memory that stores share: what their reads bring into it."""

import random
import re
from pathlib import Path

import pytest

from forebay.codecs.keys import KEY_CODECS
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.store_kinds import STORE_KINDS
from forebay.stored_keys import USER_TAG, StoredKeys, successor
from forebay.stored_values import stamp
from forebay.task_ids import TopicPartition
from forebay_worker.state.rocksdb import NotInMemory, RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory, StoreOptions
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


def test_memory_says_what_it_knows_and_nothing_else(tmp_path: Path) -> None:
    """A missing key is one only if all that shows it could be read."""
    first, _ = opened(tmp_path / "store")
    for n in range(1_000):
        first.put(key(n), b"%d" % n)
    first.put(key(2_000), b"")
    first.delete(key(5))
    first.commit({TP: CommittedOffset(1)})
    assert (first.get_from_memory(key(7)), first.get_from_memory(key(5))) == (b"7", None)
    first.close()
    store, _ = opened(tmp_path / "store")
    for n in (500, 2_000):
        with pytest.raises(NotInMemory) as missing:
            store.get_from_memory(key(n))
        assert (missing.value.store, missing.value.key) == (store, key(n))
        store.get_many([key(n)])
    assert store.get_from_memory(key(500)) == b"500"
    assert store.get_from_memory(key(3_000)) is None
    store.close()


def test_memory_gives_no_other_value_than_the_store_has(tmp_path: Path) -> None:
    """Whatever of it is in memory: records, and parts of filters and indices."""
    rows = [(key(2 * n), b"%d" % n) for n in range(100_000)]
    write_sst(tmp_path / "restored.sst", [rows], TP, CommittedOffset(1))
    store, _ = opened(tmp_path / "restored")
    store.ingest(tmp_path / "restored.sst", TP, CommittedOffset(1))
    store.close()
    store, _ = opened(tmp_path / "restored")
    answered = 0
    for n in range(500, 199_000, 77):
        expected = b"%d" % (n // 2) if n % 2 == 0 else None
        try:
            assert store.get_from_memory(key(n)) == expected
            answered += 1
        except NotInMemory:
            assert store.get_many([key(n)]) == [expected]
            assert store.get_from_memory(key(n)) == expected
    assert answered > 500
    store.close()


def test_memory_gives_no_older_value_whatever_was_evicted(tmp_path: Path) -> None:
    """Newer files replace and delete what older ones have, and the cache holds some blocks of each."""
    chance, keys, memory = random.Random(1), 60_000, RocksDbMemory(1 << 20, 4 << 20)
    store = RocksDbStore("counts", tmp_path / "store", memory.options())
    content = {}
    for name, step in (("old", 1), ("newer", 3)):
        rows = [(key(n), b"%b%d" % (name.encode(), n)) for n in range(0, keys, step)]
        write_sst(tmp_path / f"{name}.sst", [rows], TP, CommittedOffset(step))
        store.ingest(tmp_path / f"{name}.sst", TP, CommittedOffset(step))
        content |= dict(rows)
    for n in range(0, keys, 7):
        store.delete(key(n))
        content.pop(key(n))
    store.commit({TP: CommittedOffset(9)})
    store.close()
    store = RocksDbStore("counts", tmp_path / "store", memory.options())
    answered = 0
    for _ in range(20_000):
        drawn = key(chance.randrange(keys if chance.random() < 0.7 else 1_000))
        try:
            assert store.get_from_memory(drawn) == content.get(drawn)
            answered += 1
        except NotInMemory:
            assert store.get_many([drawn]) == [content.get(drawn)]
    assert 1_000 < answered < 19_000
    store.close()


def test_getting_where_a_range_begins_brings_what_it_reads(tmp_path: Path) -> None:
    """Of a store whose keys have times; one with a filter would only be told that there is no such key."""
    keys = StoredKeys(STORE_KINDS["versioned"], KEY_CODECS["string"])
    rows = [(keys.stored(b"%08d" % n, 7), b"v%d" % n + b"x" * 100) for n in range(20_000)]
    write_sst(tmp_path / "restored.sst", [rows], TP, CommittedOffset(1), StoreOptions(by_range=True))
    memory = RocksDbMemory(64 << 20, 64 << 20)
    store = RocksDbStore("counts", tmp_path / "store", memory.options(StoreOptions(by_range=True)))
    store.ingest(tmp_path / "restored.sst", TP, CommittedOffset(1))
    store.close()
    store = RocksDbStore("counts", tmp_path / "store", memory.options(StoreOptions(by_range=True)))
    unchanged = 0
    for n in range(100, 20_000, 500):
        prefix = keys.prefix(b"%08d" % n)
        store.get_many([prefix + b"\xff" * 8])
        in_memory_bytes = memory.block_cache_bytes
        assert list(store.scan(prefix, successor(prefix), reverse=True)) == [rows[n]]
        unchanged += memory.block_cache_bytes == in_memory_bytes
    # Where the range ends with a block, the next one is read too.
    assert unchanged >= 35
    store.close()


def test_damage_under_a_missing_key_is_no_miss(tmp_path: Path) -> None:
    first, _ = opened(tmp_path / "store")
    for n in range(10_000):
        first.put(key(2 * n), b"x" * 100)
    first.commit({TP: CommittedOffset(1)})
    first.close()
    (file,) = (tmp_path / "store").glob("*.sst")
    damaged = bytearray(file.read_bytes())
    # Blocks of records. The first has the offset, and the last ones are needed to open the store.
    begin, end = len(damaged) // 10, len(damaged) // 2
    damaged[begin:end] = bytes(end - begin)
    file.write_bytes(damaged)
    store, _ = opened(tmp_path / "store")
    refused = 0
    for n in range(2_000, 4_000):
        try:
            assert store.get_from_memory(key(2 * n + 1)) is None
        except NotInMemory as missing:
            with pytest.raises(StoreCorrupted):
                missing.store.get_many([missing.key])
            refused += 1
    # A Bloom filter lets about one of a hundred missing keys through to the blocks.
    assert refused > 0


def test_a_store_of_other_options_is_read_as_it_is(tmp_path: Path) -> None:
    """And written with the new ones from then on: nothing is rebuilt for them."""
    memory, rows = RocksDbMemory(8 << 20, 8 << 20), {key(n): b"%d" % n + b"x" * 200 for n in range(20_000)}
    sizes = []
    for step, chosen in enumerate((StoreOptions(compression="none"), StoreOptions(compression="zstd"))):
        store = RocksDbStore("counts", tmp_path / "store", memory.options(chosen))
        assert step == 0 or store.get_many(list(rows)) == list(rows.values())
        for stored, value in rows.items():
            store.put(stored, value)
        store.commit({TP: CommittedOffset(step + 1)})
        store.flush()
        files = sorted((tmp_path / "store").glob("*.sst"), key=lambda path: path.stat().st_mtime_ns)
        sizes.append(files[-1].stat().st_size)
        assert store.get_many(list(rows)) == list(rows.values())
        store.close()
    assert sizes[1] < sizes[0] / 2


@pytest.mark.parametrize(
    ("chosen", "smaller"),
    [(StoreOptions(bloom_bits_per_key=0), True), (StoreOptions(block_size_bytes=65_536), True)],
    ids=["no filter", "large blocks"],
)
def test_options_are_those_of_restored_files_too(tmp_path: Path, chosen: StoreOptions, smaller: bool) -> None:
    """Fewer blocks have fewer index entries, and no filter has no bits."""
    rows = [(key(n), b"%d" % n) for n in range(50_000)]
    sizes = []
    for number, options in enumerate((StoreOptions(), chosen)):
        write_sst(tmp_path / f"{number}.sst", [rows], TP, CommittedOffset(1), options)
        sizes.append((tmp_path / f"{number}.sst").stat().st_size)
    assert (sizes[1] < sizes[0] * 0.97) is smaller


def test_the_capacity_page_has_the_figures_of_a_store(tmp_path: Path) -> None:
    """Measured with fewer keys, which are as far apart; what differs by a tenth is another figure."""
    chance, count = random.Random(1), 100_000

    def value() -> bytes:
        text = b'{"orders":%d,"total":%.2f,"last":"2026-11-%02dT%02d:%02d:%02d.%03dZ","city":"%016x"}' % (
            chance.randrange(1_000),
            chance.random() * 1e4,
            *(chance.randrange(1, most) for most in (29, 24, 60, 60, 1_000)),
            chance.getrandbits(64),
        )
        return stamp(0) + text.ljust(100)

    rows = [(USER_TAG + b"%016x" % n, value()) for n in sorted(chance.sample(range(1 << 60), count))]
    page = (Path(__file__).parents[3] / "docs" / "capacity.md").read_text()
    found = {}
    for number, options in enumerate(
        (
            StoreOptions(),
            StoreOptions(compression="zstd"),
            StoreOptions(compression="none"),
            StoreOptions(bloom_bits_per_key=0),
        )
    ):
        path = tmp_path / f"{number}.sst"
        write_sst(path, [rows], TP, CommittedOffset(1), options)
        found[options] = path.stat().st_size / count
    bytes_a_key = {
        "files, compressed with LZ4": found[StoreOptions()],
        'files with [`compression = "zstd"`](topology.md#fields)': found[StoreOptions(compression="zstd")],
        'files with `compression = "none"`': found[StoreOptions(compression="none")],
        "of these, Bloom filters at 10 bits a key": found[StoreOptions()]
        - found[StoreOptions(bloom_bits_per_key=0)],
    }
    for what, figure in bytes_a_key.items():
        (said,) = re.findall(rf"\| {re.escape(what)} \| ([0-9.]+) GB \|", page)
        assert figure == pytest.approx(float(said), rel=0.1), what
