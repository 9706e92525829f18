"""The main job, as ``scripts/demo --check`` runs it: a year on SQLite, some months on Kafka and tapped."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import need_kafka, spark_kafka_jars

ROOT = Path(__file__).parents[2]
OF_A_YEAR = "19486 of 19486"
MONTHS = ["--days", "150"]


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.timeout(1300)
@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ([], OF_A_YEAR),
        ([*MONTHS, "--tap"], "windows equal"),
        pytest.param([*MONTHS, "--kafka"], "windows equal", marks=pytest.mark.kafka),
    ],
    ids=["sqlite", "tap", "kafka"],
)
def test_the_demo_checks_out(options, windows):
    if "--kafka" in options:
        need_kafka()
        spark_kafka_jars()
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights.demo", "--check", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "16 of 16" in done.stdout
    assert windows in done.stdout
