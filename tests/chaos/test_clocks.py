"""A process's wall clock is stepped, and its others are not."""

import contextlib
import os
import subprocess
import sys
import time

from tests.chaos.clocks import WallClock

_SHOWN = "import time\nwhile input():\n    print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)"


def test_a_step_moves_the_wall_clock_of_a_running_process_alone(tmp_path):
    clock = WallClock(tmp_path / "clock")
    command = [sys.executable, "-c", _SHOWN]
    environment = {**os.environ, **clock.environment()}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step_s in (0, 3_600, -3_600):
            clock.step(step_s)
            process.stdin.write("go\n")
            wall, boot = map(float, process.stdout.readline().split())
            assert round((wall - time.time() - step_s) / 60) == 0
            assert round((boot - time.clock_gettime(time.CLOCK_BOOTTIME)) / 60) == 0
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("\n")
