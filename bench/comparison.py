"""A comparison: a name, its requirements, and a function that measures it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.figures import Row, Series

APT_PACKAGES = {
    "wrk": "wrk",
    "haproxy": "haproxy",
    "nginx": "nginx",
    "redis-server": "redis-server",
    "java": "openjdk-17-jre-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
}


@dataclass(frozen=True)
class Effort:
    """How long to measure, and a directory for working files."""

    rounds: int
    seconds: int
    directory: Path


@dataclass(frozen=True)
class Comparison:
    """A named comparison; ``programs`` and ``modules`` must be installed for it."""

    name: str
    measure: Callable[[Effort], Sequence[Row | Series]]
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def obstacle(self) -> str | None:
        """Why it cannot be run here, and what to do about it."""
        for program in self.programs:
            if shutil.which(program) is None:
                return f"{program} is missing: apt-get install {APT_PACKAGES[program]}"
        for module in self.modules:
            if find_spec(module) is None:
                return f"the Python package {module} is missing: .venv/bin/pip install {module}"
        return None
