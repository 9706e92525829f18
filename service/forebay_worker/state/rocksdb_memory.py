"""The memory that all RocksDB stores of a process share, and the options of each."""

from __future__ import annotations

from dataclasses import dataclass

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

from forebay.store_spec import StoreSpec

_COMPRESSION = {"none": DBCompressionType.none, "lz4": DBCompressionType.lz4, "zstd": DBCompressionType.zstd}
_WRITE_BUFFER_BYTES_PER_STORE = 16 << 20
_ARENA_BLOCK_BYTES = 64 << 10
"""Counted against the shared write buffers at the first record; a megabyte each would cause constant flushes."""
_FULL = 0.8
"""Of its capacity: the shards of a cache fill unevenly."""
_MAX_LOG_FILE_BYTES = 128 << 10


@dataclass(frozen=True)
class StoreOptions:
    """What differs between stores; a change of it takes effect as files are written anew.

    ``by_range`` means that entries are sought by ranges, since times follow keys. The others are a store's own.
    """

    by_range: bool = False
    compression: str = StoreSpec.compression
    block_size_bytes: int = StoreSpec.block_size_bytes
    bloom_bits_per_key: int = StoreSpec.bloom_bits_per_key

    @classmethod
    def of(cls, spec: StoreSpec) -> StoreOptions:
        """Those that the topology gives."""
        by_range = spec.stored_keys.times > 0
        return cls(by_range, spec.compression, spec.block_size_bytes, spec.bloom_bits_per_key)

    def compress(self, options: Options) -> None:
        """Set how files are compressed."""
        options.set_compression_type(_COMPRESSION[self.compression]())


OF_ANY_STORE = StoreOptions()


def block_options(store: StoreOptions = OF_ANY_STORE) -> BlockBasedOptions:
    """Blocks of a store, with a Bloom filter for each file, so that a miss reads hardly any.

    Filter and index of a file are cut into blocks like its records, with a small index of their own. In one piece
    they would take megabytes of the cache at once, and where the state is larger than the cache push out what is
    read often. Where entries are sought by ranges, no filter helps. Without one, a get of a range's first key
    reads the blocks in which the range begins.
    """
    table = BlockBasedOptions()
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_block_size(store.block_size_bytes)
    if not store.by_range and store.bloom_bits_per_key:
        table.set_partition_filters(True)
        table.set_bloom_filter(store.bloom_bits_per_key, False)
    return table


class RocksDbMemory:
    """The memory shared by all stores of a process: one block cache and one write-buffer manager."""

    def __init__(self, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self._cache = Cache(block_cache_bytes)
        self._capacity_bytes = block_cache_bytes
        self._write_buffers = WriteBufferManager(write_buffer_bytes, False)

    @property
    def block_cache_bytes(self) -> int:
        """How much of the block cache is in use."""
        return int(self._cache.get_usage())

    @property
    def block_cache_is_full(self) -> bool:
        """Whether what is read takes the place of something else: state may be larger than the cache."""
        return self.block_cache_bytes >= _FULL * self._capacity_bytes

    def options(self, store: StoreOptions = OF_ANY_STORE) -> Options:
        """Options of a store that uses the shared memory."""
        table = block_options(store)
        table.set_block_cache(self._cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._write_buffers)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES_PER_STORE)
        options.set_arena_block_size(_ARENA_BLOCK_BYTES)
        store.compress(options)
        # Of its own log, to which each flush adds some kilobytes; by default it grows without end.
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(_MAX_LOG_FILE_BYTES)
        options.set_max_open_files(256)
        # More threads would be started and ended at every opening, which takes half of its time.
        options.set_max_file_opening_threads(1)
        options.set_skip_stats_update_on_db_open(True)
        options.set_stats_dump_period_sec(0)
        return options
