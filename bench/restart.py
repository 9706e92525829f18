"""How long a worker takes from its start until it is ready, its state in place."""

from __future__ import annotations

import signal
import time

from bench.comparison import Effort
from bench.deployment import OPTIONS, STORE, ask, deployment
from bench.figures import Row, Target
from bench.records import records

from tests.support.cluster import Cluster

TASKS = 64
KEYS = 20_000


def restart(effort: Effort) -> list[Row]:
    with deployment(effort.directory, partitions=TASKS) as cluster:
        cluster.put(STORE, records(KEYS))
        first, _ = cluster.start_workers(2)
        router = cluster.start_router(*OPTIONS)
        cluster.wait_settled(router)
        beside = tuple(_restart(cluster, first, router) for _ in range(effort.rounds))
    what = f"restart of a worker with {TASKS} tasks in place, beside another: start to /readyz 200"
    return [Row(what, "s", beside, target=Target(1.5, at_least=False, of_ratio=False))]


def _restart(cluster: Cluster, address: str, router: str) -> float:
    cluster.kill(address, signal.SIGTERM)
    begun = time.monotonic()
    cluster.start_worker(address, ready=False)
    while ask(address, "/readyz")[0] != 200:
        assert cluster.workers[address].poll() is None, cluster.logs()
        time.sleep(0.005)
    taken = time.monotonic() - begun
    cluster.wait_settled(router)
    return taken
