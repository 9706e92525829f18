"""One of a router's several processes: reads from standard input what it is to be, and ends with its parent."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys

from forebay.errors import ForebayError
from forebay.logs import configure_logs
from forebay_router.command import run

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the parent says that it is enough."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    settings, place, parent = pickle.load(sys.stdin.buffer)
    if os.getppid() != parent:
        # It died before it could be followed.
        return
    configure_logs(settings.log_level, settings.log_format)
    try:
        run(settings, place)
    except ForebayError as error:
        sys.exit(f"forebay: {error}")


if __name__ == "__main__":
    main()
