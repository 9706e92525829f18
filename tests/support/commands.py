"""forebay's commands as a shell runs them."""

import subprocess
import sys


def forebay(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "forebay", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
