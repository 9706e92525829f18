"""Rows of a Spark batch enriched by key through a router beside it, against a broadcast join of the same table."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import credentials
from bench.comparison import Effort
from bench.deployment import OPTIONS, STORE, served
from bench.figures import Row, interleaved

from examples.enrichment.enrich import ADDED_COLUMNS, enrich
from examples.flights.session import start_spark
from forebay.client import Client
from forebay.errors import Problem
from tests.support.cluster import wait_until

_ROWS = 200_000
_KEYS = {20_000: "rows of 20,000 keys at random", 500: "rows of 500 keys at random"}


def enrichment(effort: Effort) -> list[Row]:
    with served(effort.directory) as (cluster, _, _, keys):
        router = f"unix:{effort.directory / 'router.sock'}"
        cluster.launch_router("--listen", router, *OPTIONS, *credentials.sidecar_options(effort.directory))
        wait_until(lambda: _answers(router, keys[0]), "a read through the socket")
        spark = start_spark()
        try:
            return [_row(effort, spark, router, keys[:count], what) for count, what in _KEYS.items()]
        finally:
            spark.stop()


def _row(effort: Effort, spark: Any, router: str, keys: Sequence[str], what: str) -> Row:
    from pyspark.sql.functions import broadcast

    chosen = random.Random(1).choices(keys, k=_ROWS)
    rows = spark.createDataFrame([(key,) for key in chosen], "key string").coalesce(1).cache()
    table = spark.createDataFrame([(key, "x" * 100) for key in keys], "key string, value string").cache()
    sides = (
        lambda: rows.mapInArrow(enrich(router, STORE, "key", timeout_ms=30_000), f"key string, {ADDED_COLUMNS}"),
        lambda: rows.join(broadcast(table), "key", "left"),
    )
    measured = [_us_per_row(side) for side in sides]
    for measure in measured:
        # The first run starts Python, compiles and fills the caches.
        measure()
    read, joined = interleaved(effort.rounds, *measured)
    return Row(f"enrichment by key in one task, {what}, a row", "µs", read, "a broadcast join", joined)


def _us_per_row(side: Callable[[], Any]) -> Callable[[], float]:
    def measure() -> float:
        begun_s = time.monotonic()
        side().write.format("noop").mode("overwrite").save()
        return (time.monotonic() - begun_s) / _ROWS * 1e6

    return measure


def _answers(router: str, key: str) -> bool:
    try:
        with Client(router) as client:
            return bool(client.get(STORE, key, timeout_ms=500).value)
    except Problem:
        return False
