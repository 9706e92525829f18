"""forebay's commands as a shell runs them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.command_process import CommandProcess

_WITHOUT_RIGHTS = ("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()
"""Takes from root what it has beyond other users."""


def forebay(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = list(map(str, arguments))
    with tempfile.TemporaryDirectory() as directory:
        output, errors = Path(directory) / "output", Path(directory) / "errors"
        process = CommandProcess(command, output, os.environ, errors)
        try:
            status = process.wait(30)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, status, output.read_text(), errors.read_text())


def forebay_without_rights(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same as a user who is bound by the permissions of files, as root is not."""
    return _run(*arguments, prefix=_WITHOUT_RIGHTS)


def forebay_on_terminal_of(encoding: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The same for somebody whose terminal has another encoding, by Python's name."""
    return _run(*arguments, encoding=encoding)


def _run(
    *arguments: object, prefix: tuple[str, ...] = (), encoding: str | None = None
) -> subprocess.CompletedProcess[str]:
    own = {} if encoding is None else {"PYTHONIOENCODING": encoding}
    return subprocess.run(
        [*prefix, sys.executable, "-m", "forebay", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding=encoding,
        env={**os.environ, **own},
        timeout=30,
        check=False,
    )
