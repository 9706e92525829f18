"""The README's own snippets, run as they stand."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from forebay.topology_file import load_topology
from forebay_changelog.sqlite.changelog import SqliteChangelog
from tests.support.cluster import running_cluster
from tests.support.logs import SqliteLog

README = (Path(__file__).parents[2] / "README.md").read_text()


def snippet(language: str, containing: str) -> str:
    for indent, found in re.findall(rf"^( *)```{language}\n(.*?)^ *```", README, re.M | re.S):
        if containing in found:
            return "".join(line.removeprefix(indent) for line in found.splitlines(keepends=True))
    raise AssertionError(f"no {language} snippet with {containing!r}")


def test_the_answer_shown_has_the_members_of_a_real_one(cluster):
    shown = json.loads(snippet("json", "carrier_delays"))
    cluster.put("counts", {b"a": b"1"})
    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    assert list(shown) == list(httpx.get(f"http://{router}/v1/stores/counts/keys/a").json())


@pytest.mark.spark
def test_the_sink_snippet_is_served(tmp_path):
    topology = snippet("toml", "orders_by_customer")
    (tmp_path / "topology.toml").write_text(topology)
    (tmp_path / "in").mkdir()
    rows = [{"customer": customer} for customer in ("ann", "bob", "ann")]
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = (
        snippet("python", "Sink(")
        .replace("/var/lib/forebay", str(tmp_path))
        .replace(".start()", ".trigger(availableNow=True).start()")
    )
    job = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).config(
    "spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").config(
    "spark.sql.shuffle.partitions", 2).getOrCreate()
orders = spark.readStream.schema("customer string").json("in")
{lines}
query.awaitTermination()
"""
    # The Python first on the PATH may be any other: Spark's workers must be this one.
    decoy = tmp_path / "bin" / "python3"
    decoy.parent.mkdir()
    decoy.write_text("#!/bin/sh\nexit 97\n")
    decoy.chmod(0o755)
    environment = {**os.environ, "PATH": f"{decoy.parent}:{os.environ['PATH']}"}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", job], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (tmp_path / "cluster").mkdir()
    with running_cluster(tmp_path / "cluster", topology_text=topology) as cluster:
        cluster.log = SqliteLog(SqliteChangelog(tmp_path / "changelog"))
        cluster.start_worker()
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        answer = httpx.get(f"http://{router}/v1/stores/orders_by_customer/keys/ann").json()
        assert answer["value"] == {"count": 2}
        assert load_topology(cluster.topology_path).application_id == "shop"
