"""Single reads by threads straight from a worker's stores, without a worker: a process of its own.

``python -m bench.rocksdict_reads`` reads the stores' directories, the cache's bytes and the length as JSON from
standard input, then files of keys of which each line has a store's index and a key; prints for each the keys read
in a second.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from pathlib import Path

from forebay.stored_keys import USER_TAG
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory

THREADS = 16
_WRITE_BUFFER_BYTES = 64 << 20


def main() -> None:
    """Read each file's keys for the given time."""
    given = json.loads(sys.stdin.readline())
    memory = RocksDbMemory(given["cache_bytes"], _WRITE_BUFFER_BYTES)
    stores = [
        RocksDbStore(str(index), Path(path), memory.options(), read_only=True)
        for index, path in enumerate(given["stores"])
    ]
    for line in sys.stdin:
        keys = [text.split() for text in Path(line.strip()).read_text().splitlines()]
        print(
            _rate(stores, [(int(index), USER_TAG + key.encode()) for index, key in keys], given["seconds"]),
            flush=True,
        )
    for store in stores:
        store.close()


def _rate(stores: list[RocksDbStore], keys: list[tuple[int, bytes]], seconds: float) -> float:
    until = time.monotonic() + seconds
    counts = [0] * THREADS

    def read(thread: int) -> None:
        for index, key in itertools.islice(itertools.cycle(keys), thread, None, THREADS):
            # The form that leaves Python's lock to the other threads.
            assert stores[index].get_many([key])[0] is not None
            counts[thread] += 1
            if time.monotonic() > until:
                return

    threads = [threading.Thread(target=read, args=(thread,)) for thread in range(THREADS)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begun)


if __name__ == "__main__":
    main()
