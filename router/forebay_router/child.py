"""One of a router's several processes: reads its configuration from standard input, and ends with its parent."""

from __future__ import annotations

import os
import pickle
import sys

from forebay.errors import ForebayError
from forebay.linux import end_with_parent
from forebay.logs import configure_logs
from forebay.rest.unix_listeners import inherited_listener
from forebay_router.command import run


def main() -> None:
    """Serve until the parent signals the end."""
    end_with_parent()
    settings, place, parent, descriptors = pickle.load(sys.stdin.buffer)
    if os.getppid() != parent:
        # The parent died before it could be watched.
        return
    configure_logs(settings.log_level, settings.log_format)
    try:
        run(settings, place, list(map(inherited_listener, descriptors)))
    except ForebayError as error:
        sys.exit(f"forebay: {error}")


if __name__ == "__main__":
    main()
