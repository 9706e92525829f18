"""The main job, as ``scripts/demo --check`` runs it: the year on SQLite, its first months on Kafka and tapped."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import need_kafka, spark_kafka_jars

ROOT = Path(__file__).parents[2]
FIRST_MONTHS = ["--days", "136"]
"""Eight micro-batches, of which each takes seconds: the worker and the taps are killed after the third."""


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ([], 19_486),
        (["--tap", *FIRST_MONTHS], 7_253),
        pytest.param(["--kafka", *FIRST_MONTHS], 7_253, marks=pytest.mark.kafka),
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
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "16 of 16" in done.stdout
    assert f"{windows} of {windows}" in done.stdout
