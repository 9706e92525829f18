"""A process that applies a log is killed at random points; what it leaves is a point of the log's history."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.chaos
def test_killed_store_equals_the_log_up_to_its_offset(tmp_path, request):
    kills = request.config.getoption("--crash-kills")
    runner = Path(__file__).parents[2] / "support" / "crash_runner.py"
    done = subprocess.run(
        [sys.executable, str(runner), str(tmp_path), str(kills)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["violations"] == []
    assert outcome["in_flight"] >= 0.8 * kills
