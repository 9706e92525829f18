"""Load balancers as they are configured in ``deploy``, each a real process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"


@dataclass(frozen=True)
class Balancer:
    """One of them: its command, its configuration, the command's arguments, and the signal that ends it."""

    name: str
    file: str
    arguments: Callable[[Path], Sequence[str | Path]]
    stop: signal.Signals = signal.SIGTERM

    @property
    def command(self) -> str | None:
        """Its path, None if it is not installed. Commands of root may not be on the search path."""
        return shutil.which(self.name, path=f"{os.environ['PATH']}:/usr/sbin")


def _of_nginx(configuration: Path) -> Sequence[str | Path]:
    directory = configuration.parent
    log = directory / "nginx.log"
    return ["-c", configuration, "-e", log, "-g", f"daemon off; pid {directory}/nginx.pid; error_log {log};"]


BALANCERS = (
    Balancer("haproxy", "haproxy.cfg", lambda configuration: ["-db", "-f", configuration]),
    Balancer("nginx", "nginx.conf", _of_nginx, signal.SIGQUIT),
    Balancer("caddy", "Caddyfile", lambda path: ["run", "--adapter", "caddyfile", "--config", path]),
)


@contextlib.contextmanager
def running_balancer(
    balancer: Balancer, directory: Path, routers: Sequence[str], changes: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Its URL, in front of routers at these addresses, until the end of the block.

    ``changes`` are replacements in its configuration.
    """
    front = free_port()
    own = {"8080": str(front), "8404": str(free_port())}
    own |= {f"router-{number}:8080": router for number, router in enumerate(routers, 1)}
    text = (DEPLOY / balancer.file).read_text()
    for part, replacement in (changes or {}).items():
        assert part in text
        text = text.replace(part, replacement)
    text = text.replace("/var/log/nginx", str(directory))
    configuration = directory / balancer.file
    configuration.write_text(re.sub(r"router-\d:8080|\b(?:8080|8404)\b", lambda found: own[found[0]], text))
    assert balancer.command is not None
    with (directory / f"{balancer.name}.out").open("wb") as log:
        process = subprocess.Popen(
            [balancer.command, *balancer.arguments(configuration)],
            stdout=log,
            stderr=log,
            # Caddy keeps files at home.
            env=os.environ | {"HOME": str(directory)},
        )
    try:
        yield f"http://127.0.0.1:{front}"
    finally:
        process.send_signal(balancer.stop)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
