"""The example of a Spark job that reads through a router on a Unix socket."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from examples.enrichment.enrich import client_of, enrich
from forebay.client import Client
from forebay.errors import LagExceedsTolerance, Problem
from tests.support.cluster import running_cluster, wait_until

ROOT = Path(__file__).parents[2]
TOPOLOGY = """
application_id = "flights"
[[subtopology]]
name = "delays"
partitions = 2
[[subtopology.store]]
name = "carrier_delays"
"""
DELAYS = {"UA": b'{"flights":3}', "AA": b'{"flights":5}', **{f"C{number}": b"%d" % number for number in range(60)}}
_FIRST = Path("examples/enrichment/departures/departures.json")


@pytest.mark.spark
def test_enrichment_survives_a_worker_loss_within_its_bound(tmp_path):
    """A stream on Spark executors reads through a router on a Unix socket."""
    departures = write_departures(tmp_path / "departures")
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        cluster.put("carrier_delays", {carrier.encode(): value for carrier, value in DELAYS.items()})
        workers = cluster.start_workers(2)
        router = f"unix:{tmp_path / 'router.sock'}"
        cluster.launch_router("--listen", router)
        wait_until(lambda: has_standbys(router), "a standby of each partition")
        with started_job(router, tmp_path) as job:
            assert job.stdout is not None
            lines = (line for line in job.stdout if line.startswith("{"))
            rows = [json.loads(next(lines))]
            cluster.kill(workers[0])
            rows += map(json.loads, lines)
            assert job.wait(60) == 0
        batch = pa.RecordBatch.from_pydict({"carrier": ["UA"]})
        with client_of(router), pytest.raises(LagExceedsTolerance):
            next(enrich(router, "carrier_delays", "carrier", max_age_ms=0)(iter([batch])))
    found = {row["flight"]: json.loads(row.get("value", "null")) for row in rows}
    assert len(rows) == len(departures)
    assert found == {flight: json.loads(DELAYS.get(carrier, b"null")) for flight, carrier in departures.items()}
    # That there is none was read, too; without a key nothing is.
    of_flight = {row["flight"]: (row.get("record_lag"), row.get("time_lag_ms")) for row in rows}
    assert of_flight.pop("private") == (None, None)
    assert all(record_lag == 0 and time_lag_ms <= 10_000 for record_lag, time_lag_ms in of_flight.values())


def write_departures(directory: Path) -> dict[str, str]:
    """Files of departures, those of the example first; returns the carrier of each flight."""
    directory.mkdir()
    files = [[json.loads(line) for line in (ROOT / _FIRST).read_text().splitlines()]]
    files += [[{"flight": f"{n}-{carrier}", "carrier": carrier} for carrier in DELAYS] for n in range(5)]
    for number, departures in enumerate(files):
        path = directory / f"{number}.json"
        path.write_text("".join(json.dumps(one) + "\n" for one in departures))
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return {one["flight"]: one.get("carrier") for departures in files for one in departures}


@contextlib.contextmanager
def started_job(router: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The example on two executors, each a process of its own."""
    command = [sys.executable, "-m", "examples.enrichment.job", "--router", router]
    command += ["--departures", str(directory / "departures"), "--master", "local-cluster[2,1,512]"]
    submitted = f"--conf spark.executor.memory=512m --conf spark.executorEnv.PYTHONPATH={ROOT} pyspark-shell"
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": submitted,
        "SPARK_WORKER_DIR": str(directory / "executors"),
    }
    with (
        (directory / "job.log").open("w") as log,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as job,
    ):
        try:
            yield job
        finally:
            job.kill()


def has_standbys(router: str) -> bool:
    with contextlib.suppress(Problem), Client(router) as client:
        return [row.lag.record_lag for row in client.lags("carrier_delays")] == [0] * 4
    return False
