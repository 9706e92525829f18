"""What a command prints: tables and sentences for people, or JSON for programs, whatever the output's encoding.

Rich is imported where it is used: it takes long, and workers import this module too.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPED_COLUMNS = 1_000
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


class Output:
    """A command's standard output; its shape for programs is that of docs/commands.md."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, document: Mapping[str, Any], *shown: RenderableType) -> None:
        """Print a result: the document under ``--json``, otherwise what is shown of it to people."""
        self.show_text(json.dumps(document, indent=2, ensure_ascii=False), *shown)

    def show_text(self, text: str, *shown: RenderableType) -> None:
        """The same for a document that is JSON text already, which is printed as it is."""
        if self.as_json:
            print_line(text)
            return
        from rich.text import Text

        for renderable in shown:
            terminal().print(renderable, soft_wrap=isinstance(renderable, str | Text))


def quantity(count: int, noun: str) -> str:
    """A number of things, whose noun takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def json_output(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command that prints a result the flag ``--json``; it is called with the ``output``."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON; its members do not change their meaning.")
    @functools.wraps(function)
    def command(as_json: bool, **rest: Any) -> None:
        function(output=Output(as_json), **rest)

    return command


def terminal() -> Console:
    """As wide as the terminal; without one, names are not broken to fit. What looks like markup is printed
    unchanged."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_COLUMNS
    return Console(width=width, markup=False, emoji=False, highlight=False)


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, gone at the end; call what it yields with how many more are done.

    Without a ``total`` the bar shows only that, and how much, was done. On a terminal only: what a pipe or a log
    would get of it is of no use.
    """
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)
