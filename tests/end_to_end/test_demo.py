"""The main job, as ``scripts/demo --check`` runs it, but of some months: on SQLite, tapped and on Kafka."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import need_kafka, spark_kafka_jars

ROOT = Path(__file__).parents[2]
MONTHS = ["--days", "150"]


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.timeout(1300)
@pytest.mark.parametrize(
    "options",
    [[], ["--tap"], pytest.param(["--kafka"], marks=pytest.mark.kafka)],
    ids=["sqlite", "tap", "kafka"],
)
def test_the_demo_checks_out(options):
    if "--kafka" in options:
        need_kafka()
        spark_kafka_jars()
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights.demo", "--check", *MONTHS, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "16 of 16" in done.stdout
    assert "windows equal" in done.stdout
