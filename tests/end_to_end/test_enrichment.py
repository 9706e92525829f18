"""The example of a Spark job that reads through a router on a Unix socket."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from examples.enrichment.enrich import client_of, enrich
from forebay.client import Client
from forebay.errors import LagExceedsTolerance, Problem
from tests.cluster import running_cluster, wait_until

ROOT = Path(__file__).parents[2]
TOPOLOGY = """
application_id = "flights"
[[subtopology]]
name = "delays"
partitions = 2
[[subtopology.store]]
name = "carrier_delays"
"""
UA, AA = b'{"flights":3}', b'{"flights":5}'


@pytest.mark.spark
def test_a_stream_is_enriched_by_key_within_a_bound(tmp_path):
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        cluster.put("carrier_delays", {b"UA": UA, b"AA": AA})
        cluster.start_worker()
        router = f"unix:{tmp_path / 'router.sock'}"
        cluster.launch_router("--listen", router)
        wait_until(lambda: caught_up(router), "a read through the socket")
        command = [sys.executable, "-m", "examples.enrichment.job", "--router", router]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.returncode == 0, done.stderr
        assert [(row["flight"], json.loads(row.get("value", "null"))) for row in rows] == [
            ("UA1545", {"flights": 3}),
            ("AA1141", {"flights": 5}),
            ("UA1714", {"flights": 3}),
            ("ZZ1", None),
            ("private", None),
        ]
        # That there is none was read, too; without a key nothing is.
        assert [row.get("record_lag") for row in rows] == [0, 0, 0, 0, None]
        assert all(row["time_lag_ms"] <= 10_000 for row in rows[:4])
        batch = pa.RecordBatch.from_pydict({"carrier": ["UA"]})
        with client_of(router), pytest.raises(LagExceedsTolerance):
            next(enrich(router, "carrier_delays", "carrier", max_age_ms=0)(iter([batch])))


def caught_up(router: str) -> bool:
    with contextlib.suppress(Problem), Client(router) as client:
        return client.get("carrier_delays", "AA", max_record_lag=0, timeout_ms=500).value == {"flights": 5}
    return False
