"""What a command prints: tables and sentences for people, or JSON for programs."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.text import Text

from forebay.standard_streams import print_line

_PIPED_COLUMNS = 1_000


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
        for renderable in shown:
            terminal().print(renderable, soft_wrap=isinstance(renderable, str | Text))

    def show_line(self, text: str, shown: str) -> None:
        """Print one of many results: its JSON text, which has no line ends, or its line for people."""
        print_line(text if self.as_json else shown)


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
    # Here: it takes long to import, and workers import this module too.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)
