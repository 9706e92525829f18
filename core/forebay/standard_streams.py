"""Standard output and standard error, whatever encoding they have."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys

_ESCAPED = "forebay-escaped"


def prepare_streams() -> None:
    """Have characters that the encoding of an output lacks, and lone surrogates, escaped as JSON does.

    A JSON document stays the same document so. A stream that the caller has closed takes everything.
    """
    codecs.register_error(_ESCAPED, _escaped)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)


def print_line(text: str, *, to_stderr: bool = False) -> None:
    """Print a line at once. Why: ``click.echo`` writes UTF-8 where the encoding is ASCII."""
    print(text, file=sys.stderr if to_stderr else sys.stdout, flush=True)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
