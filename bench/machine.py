"""The machine and the versions behind the figures."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("uvicorn", "uvloop", "httptools", "fastapi", "httpx", "rocksdict", "redis", "aiohttp")
_PROGRAMS = {
    "wrk": ["wrk", "-v"],
    "HAProxy": ["haproxy", "-v"],
    "nginx": ["nginx", "-v"],
    "Redis": ["redis-server", "--version"],
    "Java": ["java", "-version"],
}
_JARS = {
    "Kafka": "kafka/kafka_2.13-*.jar",
    "Kafka Streams": "kafka-streams/kafka-streams-*.jar",
    "Undertow": "kafka-streams/undertow-core-*.jar",
}


def machine() -> dict[str, str]:
    """Processor, memory, system, and how busy it was before."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "processor": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load average at the start": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def versions() -> dict[str, str]:
    """Versions of forebay, by commit, and of everything that took part."""
    found = {"forebay": f"{version('forebay')} ({_commit()})"}
    # Two builds of one version may differ by a third.
    _, built = platform.python_build()
    found["Python"] = f"{platform.python_version()} (built {built}, {platform.python_compiler()})"
    found["SQLite"] = sqlite3.sqlite_version
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    for name, command in _PROGRAMS.items():
        if shutil.which(command[0]):
            found[name] = _first_number(command)
    for name, pattern in _JARS.items():
        for jar in (Path(__file__).parents[1] / ".jars").glob(pattern):
            found[name] = jar.stem.rpartition("-")[2].removesuffix(".Final")
    return found


def _processor() -> str:
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return models[0] if models else platform.machine()


def _commit() -> str:
    import forebay

    ran = subprocess.run(
        ["git", "-C", str(Path(forebay.__file__).parent), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout.strip() or "no commit"


def _first_number(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)?", ran.stdout + ran.stderr)
    return found[0] if found else "unknown"
