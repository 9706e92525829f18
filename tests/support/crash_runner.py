"""Repeatedly kills processes that apply a log, and compares what each left with the log's fold.

Prints one JSON line: kills, how many hit a batch in flight, and every violation. RocksDB is only ever opened in
forked children, whose parent has no threads.
"""

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from forebay.state_store import CommittedOffset
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.task_ids import TopicPartition
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks.restore_process import write_sst

TP, BESIDE = TopicPartition("log", 0), TopicPartition("beside", 0)
PAIR = USER_TAG + b"offset of the other"
KEYS = 97
BATCH = 400


def record(offset: int) -> tuple[bytes, bytes | None]:
    """The log is a function of the offset: some keys are overwritten, every seventh record deletes."""
    key = USER_TAG + b"k%d" % (offset * 31 % KEYS)
    return key, None if offset % 7 == 3 else b"%d" % offset * 20


def fold(position: int) -> dict[bytes, bytes]:
    content: dict[bytes, bytes] = {}
    for offset in range(max(0, position - 40 * KEYS), position):
        key, value = record(offset)
        content.pop(key, None)
        if value is not None:
            content[key] = value
    return content


def open_store(directory: Path) -> RocksDbStore:
    return RocksDbStore("s", directory / "store", RocksDbMemory(1 << 20, 1 << 20).options())


def apply_forever(directory: Path, seed: int, pipe: int) -> None:
    chance = random.Random(seed)
    store = open_store(directory)
    # A file brings one offset; a store of several takes none.
    of_files = directory.name == "one"
    while True:
        committed = store.committed_offset(TP)
        position = committed.position if committed else 0
        after = CommittedOffset(position + BATCH, position + BATCH)
        os.write(pipe, b"<")
        if of_files and chance.random() < 0.2:
            changes = dict(record(offset) for offset in range(position, position + BATCH))
            path = directory / f"{position}.sst"
            path.unlink(missing_ok=True)
            write_sst(path, [sorted(changes.items())], TP, after)
            store.ingest(path, TP, after)
        else:
            # Not between batches: a kill should hit one in flight, and a flush must leave out what is uncommitted.
            flushed_at = chance.randrange(position, position + BATCH) if chance.random() < 0.1 else None
            for offset in range(position, position + BATCH):
                if offset == flushed_at:
                    store.flush()
                key, value = record(offset)
                if value is None:
                    store.delete(key)
                else:
                    store.put(key, value)
            if not of_files:
                store.put(PAIR, b"%d" % after.position)
            store.commit({TP: after} if of_files else {TP: after, BESIDE: after})
        os.write(pipe, b">")


def violation(directory: Path) -> str:
    store = open_store(directory)
    committed = store.committed_offset(TP)
    position = committed.position if committed else 0
    found = dict(store.scan(USER_TAG, END_OF_USER_KEYS))
    beside, pair = store.committed_offset(BESIDE), int(found.pop(PAIR, b"0"))
    store.close()
    if (beside.position if beside else 0) != pair:
        return f"{BESIDE} is at {beside}, what was committed with it at {pair}"
    expected = fold(position)
    return "" if found == expected else f"at {position}: {len(found)} keys found, {len(expected)} expected"


def in_child(work: object) -> tuple[int, int]:
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        try:
            work(writable)  # type: ignore[operator]
        finally:
            os._exit(0)
    os.close(writable)
    return child, readable


def kill_once(directory: Path, seed: int) -> bool:
    """Whether a batch was in flight when the process was killed."""
    child, readable = in_child(lambda pipe: apply_forever(directory, seed, pipe))
    marks = os.read(readable, 1)
    until = time.monotonic() + random.Random(seed).uniform(0.0, 0.02)
    while (left := until - time.monotonic()) > 0:
        if select.select([readable], [], [], left)[0]:
            marks += os.read(readable, 4096)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(readable, 4096):
        marks += more
    os.close(readable)
    return marks.endswith(b"<")


def main() -> None:
    kills, in_flight, violations = int(sys.argv[2]), 0, []
    for seed in range(kills):
        directory = Path(sys.argv[1]) / ("two" if seed % 3 == 2 else "one")
        directory.mkdir(exist_ok=True)
        in_flight += kill_once(directory, seed)
        child, readable = in_child(lambda pipe, at=directory: os.write(pipe, violation(at).encode()))
        found = os.read(readable, 4096).decode()
        os.waitpid(child, 0)
        os.close(readable)
        if found:
            violations.append(f"kill {seed} {found}")
    print(json.dumps({"kills": kills, "in_flight": in_flight, "violations": violations}))


if __name__ == "__main__":
    main()
