"""Reads every key of every replica at the end of the log, past routers and proxies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx

from forebay.clock import boot_ms
from tests.chaos import answers
from tests.chaos.deployment import Deployment
from tests.chaos.history import Finding, Read
from tests.chaos.node import Endpoint
from tests.chaos.writer import KEYS, Writer, key_of

PATIENCE_S = 20
"""For replicas to reach the log's end."""
_STORES = ("counts", "prices", "seen", "large", "wide")
_ANSWERED = frozenset({200, 404, 421})
"""A worker that holds no replica of a partition says so."""


def sweep(deployment: Deployment, writer: Writer) -> Iterator[Read | Finding]:
    """The reads, and a finding for each that a replica did not answer."""
    with httpx.Client(timeout=PATIENCE_S) as http:
        for worker in list(deployment.workers.values()):
            if worker.meant_to_run:
                for endpoint, store in itertools.product(worker.endpoints, _STORES):
                    yield from _sweep_store(http, deployment, writer, endpoint, store)


def _sweep_store(
    http: httpx.Client, deployment: Deployment, writer: Writer, worker: Endpoint, store: str
) -> Iterator[Read | Finding]:
    spec = deployment.topology.stores[store]
    split: dict[int, list[str]] = {}
    for key in (key_of(store, number) for number in range(KEYS)):
        split.setdefault(spec.partition_of(key.encode()), []).append(key)
    for partition, keys in split.items():
        least = {partition: writer.ends[store].get(partition, 0)}
        read = Read("sweep", "sweep", "worker", worker.address, store, boot_ms(), 0.0, 0, min_position=least)
        options: dict[str, str | int] = {"wait_ms": 10_000, "timeout_ms": 15_000}
        options["min_position"] = writer.position(store, partition)
        url = f"http://{worker.listen}/v1/stores/{store}/batch-get"
        results = http.post(url, params=options, json={"keys": keys}).json()["results"]
        received = replace(read, received_ms=boot_ms())
        for key, result in zip(keys, results, strict=True):
            yield from _swept(received, key, result)


def _swept(read: Read, key: str, result: dict[str, Any]) -> Iterator[Read | Finding]:
    problem = result.get("problem")
    if problem is None:
        found = answers.of_key(read, 200, result)
    else:
        found = answers.of_key(read, problem["status"], {**problem, "key": key})
    yield found
    if found.status not in _ANSWERED:
        detail = f"{read.target} answers {found.status} {found.problem} for {key} of {read.store}"
        yield Finding("not-converged", detail, read.received_ms)
