"""wrk: a closed loop of requests over a number of keep-alive connections."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.credentials import AUTHORIZATION
from bench.descriptors import allow_open_files

SCRIPT = Path(__file__).with_name("load.lua")


class LoadFailed(Exception):
    """Some requests were refused or broken, so the figure would be meaningless."""


@dataclass(frozen=True)
class Requests:
    """The requests, in turn: keys below a path (GET), or bodies for it (POST); without lines, the path itself."""

    path: str
    method: str = "GET"
    lines: Path | None = None

    @classmethod
    def of(cls, file: Path, path: str, lines: Iterable[str], method: str = "GET") -> Requests:
        """Requests whose keys or bodies are put into a file."""
        file.write_text("\n".join(lines) + "\n")
        return cls(path, method, file)


@dataclass(frozen=True)
class Load:
    """The results of a run of wrk."""

    requests_per_second: float
    p50_ms: float
    p99_ms: float


def load(
    address: str, requests: Requests, *, connections: int, seconds: int, authorization: str = AUTHORIZATION
) -> Load:
    """Send requests as fast as answers arrive; raises ``LoadFailed``."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(SCRIPT), "--timeout", "10s"]
    command += ["-H", f"Authorization: {authorization}"]
    command += [f"http://{address}{requests.path}"]
    if requests.lines is not None:
        command += ["--", requests.method, requests.path, str(requests.lines)]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 30,
        preexec_fn=allow_open_files,
    )
    if ran.returncode:
        raise LoadFailed(f"wrk ended with {ran.returncode}: {ran.stderr.strip() or ran.stdout.strip()}")
    seen = json.loads(ran.stdout.splitlines()[-1])
    if seen["refused"] or seen["broken"] or not seen["requests"]:
        raise LoadFailed(f"requests to {address}{requests.path} failed: {seen}")
    return Load(seen["requests"] / seen["microseconds"] * 1e6, seen["p50_us"] / 1e3, seen["p99_us"] / 1e3)
