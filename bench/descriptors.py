"""Open files of a process: each connection is one."""

from __future__ import annotations

import resource


def allow_open_files() -> int:
    """Raise this process's limit as far as it may; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
