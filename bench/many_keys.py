"""Reads of many keys through the router: batches against single reads, a range against RocksDB itself."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.comparison import Effort
from bench.credentials import AUTHORIZATION
from bench.deployment import STORE, served
from bench.figures import Row, Target, interleaved
from bench.records import records
from bench.single_key import rate
from bench.wrk import Requests

from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory

BATCH = 100
ENTRIES = 100_000
_NEXT = re.compile(rb'"next":"([^"]*)"')


def batches(effort: Effort) -> list[Row]:
    with served(effort.directory, router=True) as (_, _, router, keys):
        bodies = (json.dumps({"keys": keys[at : at + BATCH]}) for at in range(0, len(keys), BATCH))
        batch = Requests.of(effort.directory / "batches", f"/v1/stores/{STORE}/batch-get", bodies, "POST")
        single = Requests.of(effort.directory / "keys", f"/v1/stores/{STORE}/keys/", keys)
        rows = []
        for connections in (1, 32):
            ours, theirs = interleaved(
                effort.rounds,
                rate(effort, router, batch, connections),
                rate(effort, router, single, connections),
            )
            what = f"batch-get of {BATCH} keys through the router, {_count(connections)}"
            against = f"the same keys singly, {_count(connections)}"
            rows.append(Row(what, "keys/s", tuple(BATCH * value for value in ours), against, theirs, Target(8)))
        return rows


def scan(effort: Effort) -> list[Row]:
    with served(effort.directory, router=True, keys=ENTRIES) as (_, _, router, _):
        store = _local_store(effort.directory / "local", records(ENTRIES))
        ours, theirs = interleaved(
            effort.rounds,
            lambda: _entries_per_second(effort, lambda: _scan_through(router)),
            lambda: _entries_per_second(effort, lambda: sum(1 for _ in store.scan(USER_TAG, END_OF_USER_KEYS))),
        )
        store.close()
        what = f"range scan of {ENTRIES:,} entries through the router"
        return [Row(what, "entries/s", ours, "rocksdict in process, one store", theirs, Target(0.25))]


def _count(connections: int) -> str:
    return "1 connection" if connections == 1 else f"{connections} connections"


def _entries_per_second(effort: Effort, read: Callable[[], int]) -> float:
    """Of scans one after the other."""
    begun = time.perf_counter()
    scans, took = 0, 0.0
    while took < effort.seconds:
        count = read()
        assert count == ENTRIES, f"{count} entries of {ENTRIES}"
        scans, took = scans + 1, time.perf_counter() - begun
    return scans * ENTRIES / took


def _scan_through(router: str) -> int:
    """Read every page; the entries are counted, not parsed."""
    connection = http.client.HTTPConnection(router)
    path = f"/v1/stores/{STORE}/entries?limit={ENTRIES}&timeout_ms=30000"
    count, cursor = 0, b""
    while True:
        target = path + (f"&cursor={cursor.decode()}" if cursor else "")
        connection.request("GET", target, headers={"authorization": AUTHORIZATION})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        count += body.count(b'{"key":')
        following = _NEXT.search(body, max(0, len(body) - 8192))
        if following is None:
            connection.close()
            return count
        cursor = following[1]


def _local_store(path: Path, rows: Mapping[bytes, bytes]) -> RocksDbStore:
    store = RocksDbStore(STORE, path, RocksDbMemory(256 << 20, 256 << 20).options())
    for key, value in rows.items():
        store.put(USER_TAG + key, value)
    store.commit({})
    store.flush()
    return store
