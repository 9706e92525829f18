"""Draws ``docs/console.png``: the console of a live cluster that has just lost a worker, in a real browser."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.browser import browser_page
from tests.support.cluster import Cluster, running_cluster

PICTURE = Path(__file__).parent / "console.png"
_TOPOLOGY = """
application_id = "shop"

[[subtopology]]
name = "orders"
partitions = 12

[[subtopology.store]]
name = "orders_by_customer"

[[subtopology]]
name = "visits"
partitions = 4

[[subtopology.store]]
name = "visits_by_page"
kind = "window"
window_size_ms = 60000
retention_ms = 86400000
"""
_CUSTOMERS = 500
_SIZE = (1100, 1010)
_HISTORY_S = 70
_READ_PAUSE_S = 0.008
_READS_PER_WRITE = 25


def _work(cluster: Cluster, router: str, ended: threading.Event) -> None:
    """Write orders and visits, and read orders, a few too strictly, until the end."""
    with httpx.Client() as client:
        for turn in itertools.count():
            if ended.wait(_READ_PAUSE_S):
                return
            customer = turn * 7 % _CUSTOMERS
            if turn % _READS_PER_WRITE == 0:
                cluster.put("orders_by_customer", {b"c%d" % customer: b'{"orders": %d}' % turn})
                window = (time.time_ns() // 60_000_000_000 * 60_000).to_bytes(8, "big")
                cluster.put("visits_by_page", {b"/page/%d" % (turn % 9) + window: b"%d" % turn})
            bound = "?max_time_lag_ms=2" if turn % 11 == 0 else ""
            client.get(f"http://{router}/v1/stores/orders_by_customer/keys/c{customer}{bound}")
            if turn % 5 == 0:
                client.get(f"http://{router}/v1/stores/visits_by_page/keys/%2Fpage%2F1/windows")


@contextlib.contextmanager
def _busy_cluster(directory: Path) -> Iterator[tuple[Cluster, str]]:
    """A cluster of three workers and a router, which is written to and read from."""
    # Long enough for a picture of what happens before an active is assigned.
    options = ("--session-timeout-ms", "10000")
    with running_cluster(directory, topology_text=_TOPOLOGY, worker_options=options) as cluster:
        cluster.put("orders_by_customer", {b"c%d" % n: b'{"orders": 1}' for n in range(_CUSTOMERS)})
        cluster.start_workers(3)
        router = cluster.start_router()
        cluster.wait_settled(router)
        ended = threading.Event()
        working = threading.Thread(target=_work, args=(cluster, router, ended))
        working.start()
        try:
            yield cluster, router
        finally:
            ended.set()
            working.join()


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with _busy_cluster(directory) as (cluster, router), browser_page(directory) as page:
            page.resize(*_SIZE)
            page.theme("light")
            time.sleep(_HISTORY_S)
            page.open(f"http://{router}/console")
            page.wait_for("document.querySelector('.cell.served')", "the grid")
            page.fill("#tolerance-bound", "5")
            cluster.kill(next(iter(cluster.workers)))
            page.wait_for("document.querySelectorAll('#findings li').length >= 2", "the findings")
            page.wait_for("document.querySelector('.cell.standby')", "the fail-over")
            page.wait_for("document.querySelectorAll('#tolerance-table td').length === 6", "the tolerance")
            time.sleep(2)
            page.picture(PICTURE)


if __name__ == "__main__":
    main()
