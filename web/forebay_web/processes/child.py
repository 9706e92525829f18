"""One of several processes: what it gets from its parent, with which it ends."""

from __future__ import annotations

import os
import pickle
import sys

from forebay.errors import ForebayError
from forebay.file_access import naming_denials
from forebay.linux import end_with_parent
from forebay.logs import configure_logs
from forebay_web.listeners import inherited_listener


def main() -> None:
    """Run until the parent signals the end, what is read from standard input."""
    end_with_parent()
    run, settings, place, parent, descriptors = pickle.load(sys.stdin.buffer)
    if os.getppid() != parent:
        # The parent died before it could be watched.
        return
    configure_logs(settings.log_level, settings.log_format)
    try:
        with naming_denials():
            run(settings, place, *map(inherited_listener, descriptors))
    except ForebayError as error:
        print(f"forebay: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
