"""Process 1 of the image: what it does with orphans and with signals."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import wait_until

DOCKERFILE = (Path(__file__).parents[2] / "deploy" / "Dockerfile").read_text()
ENTRY_POINTS = [json.loads(line) for line in re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.M)]
IN_A_CONTAINER = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")

COMMAND = """
import os, signal, subprocess, sys, time
# An orphan: its parent ends before it does.
subprocess.run(["sh", "-c", "sleep 0.05 & echo $!"], check=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), flush=True)
while True:
    left = [line.split()[1:3] for line in subprocess.getoutput("ps -eo ppid,stat,comm").splitlines()]
    print(sum(stat.startswith("Z") for stat, _ in left) + sum(comm == "sleep" for _, comm in left), flush=True)
    time.sleep(0.05)
"""


def has_containers() -> bool:
    """Whether a process may get a name space of processes, and there is what the image installs."""
    if shutil.which("tini") is None or shutil.which("unshare") is None:
        return False
    return subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(params=ENTRY_POINTS, ids=lambda entry: entry[-1])
def running(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A command begun as the image begins it, as process 1 of a name space of its own."""
    first = request.param[: request.param.index("--") + 1] if "--" in request.param else []
    command = [*IN_A_CONTAINER, *first, sys.executable, "-c", COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        yield process
        process.kill()


def test_every_stage_begins_with_what_it_installs():
    assert len(ENTRY_POINTS) == 2
    assert all(entry[0] == "tini" for entry in ENTRY_POINTS)
    assert re.search(r"apt-get install .*\btini\b", DOCKERFILE)


@pytest.mark.skipif(not has_containers(), reason="needs tini, and unshare with permission for name spaces")
def test_orphans_are_reaped_and_signals_arrive(running):
    assert running.stdout is not None
    orphan, command = int(running.stdout.readline()), int(running.stdout.readline())
    assert orphan > 0
    wait_until(lambda: running.stdout.readline() == "0\n", "the orphan to be gone")
    [first] = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert command != 1
    os.kill(int(first), signal.SIGTERM)
    assert running.wait(10) == 7
