"""Generates the blocking client from the asynchronous one."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

CLIENT = Path(__file__).parent / "forebay_client"
SOURCE, GENERATED = CLIENT / "asynchronous.py", CLIENT / "blocking.py"
_NAMES = {
    "aclose": "close",
    "anext": "next",
    "async_connections": "connections",
    "asyncio": "time",
}
"""What is named otherwise in the blocking client, beside ``Async…``. Both ``asyncio`` and ``time`` sleep."""
_TEXTS = {
    "The asynchronous client, of which ``forebay_client.blocking`` is generated.": (
        "The blocking client, generated from ``forebay_client.asynchronous`` by ``python -m client.generate``."
    ),
    " After a cancellation it reconnects.": "",
    "The stream in hand is the parent's.": (
        "The stream in hand, and a thread that waits for a change, are the parent's."
    ),
    "Close the connection; there are no more changes.": (
        "Close the connection; there are no more changes, not even for a thread waiting for one."
    ),
    """\
    Its arguments are those of ``Client``. Each event loop has connections of its own, which end with the loop, so
    that several may share a client, in several threads too; with a ``transport``, only one loop may. It is
    pickled as a ``Client`` is. Raises ``ValueError`` for an invalid HTTP URL, proxy or token.
""": """\
    With ``decimals``, numbers of values that have a fraction or an exponent are ``decimal.Decimal``, exactly as
    answers have them, and floats otherwise. ``partition_aware`` is refused: run a router beside the program.

    ``timeout_ms`` applies to calls that give none; ``token`` is sent to every server. ``verify`` is that of
    ``httpx``: an ``ssl.SSLContext`` with the authorities and client certificates for ``https`` URLs (a
    ``transport`` has its own). Threads may share a client. So may forked processes, unless it has a ``transport``:
    each process has connections of its own. A client is pickled as its arguments, and connects where it is
    unpickled; with a ``transport`` or an ``ssl.SSLContext``, that raises ``ClientUnusable``. Raises ``ValueError``
    for an invalid HTTP URL, proxy or token.
""",
}
"""What docstrings say otherwise of the blocking client."""


def generated() -> str:
    """The text of the generated file; raises ``ValueError`` if a docstring is not there to be replaced."""
    written = SOURCE.read_text()
    if gone := [text for text in _TEXTS if text not in written]:
        raise ValueError(f"no docstring says {gone[0]!r} any more: change _TEXTS")
    return _formatted(_blocking(SOURCE))


def _blocking(source: Path) -> str:
    """A module without ``async`` and ``await``, and with the names and texts of the blocking client."""
    names = {name: name.removeprefix("Async") for name in re.findall(r"\bAsync[A-Z]\w*", source.read_text())}
    with tempfile.TemporaryDirectory() as directory:
        rule = unasync.Rule(str(source.parent), directory, additional_replacements={**names, **_NAMES})
        unasync.unasync_files([str(source)], [rule])
        text = (Path(directory) / source.name).read_text()
    for asynchronous, blocking in _TEXTS.items():
        text = text.replace(asynchronous, blocking)
    return text


def _formatted(text: str) -> str:
    for command in ("check --select=I --fix", "format"):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command.split(),
            "--quiet",
            f"--stdin-filename={GENERATED}",
            "-",
        ]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    """Write the file."""
    GENERATED.write_text(generated())


if __name__ == "__main__":
    main()
