"""``forebay dev`` as a process."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.cluster import free_port, heed_interrupts


class Dev(NamedTuple):
    process: subprocess.Popen[str]
    router: str
    """The router's address."""
    workers: dict[str, int]
    """The workers' process ids by their addresses."""


@contextlib.contextmanager
def running_dev(directory: Path, *options: str) -> Iterator[Dev]:
    """The command once it is ready; its temporary files are below ``directory``."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", "dev", "--listen", address, *options],
        stdout=subprocess.PIPE,
        text=True,
        # Settings of other processes are not those of its own.
        env={**os.environ, "TMPDIR": str(directory), "FOREBAY_LISTEN": "0.0.0.0:1"},
        preexec_fn=heed_interrupts,
    )
    try:
        assert process.stdout is not None
        workers = {}
        for line in process.stdout:
            workers |= {host: int(pid) for host, pid in re.findall(r"http://(\S+), process (\d+)", line)}
            if line.startswith("Ctrl-C"):
                break
        yield Dev(process, address, workers)
    finally:
        process.kill()
        process.communicate()
