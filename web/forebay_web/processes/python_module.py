"""How this process starts modules of its own as other processes."""

from __future__ import annotations

import os
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter; no module is taken from the current directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """The environment in which modules are found where this process finds them, wherever that was started."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
