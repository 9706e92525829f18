"""The main job, as ``scripts/demo --check`` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.chaos
def test_the_demo_checks_out():
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights.demo", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "16 of 16" in done.stdout
    assert "19486 of 19486" in done.stdout
