"""The ``forebay`` command; each tier registers its own sub-command as an entry point."""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click

from forebay import __version__
from forebay.backend_registry import extra_missing
from forebay.errors import ExtraMissing, ForebayError
from forebay.file_access import naming_denials
from forebay.output import prepare_streams, print_line
from forebay.setting_sources import load_settings, load_some
from forebay.settings import Setting, Tier, settings_for

COMMANDS_ENTRY_POINTS = "forebay.commands"
FILE = click.Path(path_type=Path, readable=False)
"""A file that is read: of one that this user may not read, click would not name the owner."""


class Commands(click.Group):
    """The core's commands, and those of installed tiers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        brought = [entry_point.name for entry_point in entry_points(group=COMMANDS_ENTRY_POINTS)]
        return sorted({*super().list_commands(ctx), *brought})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entry_point in entry_points(group=COMMANDS_ENTRY_POINTS, name=cmd_name):
            try:
                command: click.Command = entry_point.load()
            except ImportError as error:
                return _placeholder(_extra_missing(entry_point, error))
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a sub-command; raises ``ExtraMissing`` if it imports what is not installed."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            for entry_point in entry_points(group=COMMANDS_ENTRY_POINTS, name=ctx.invoked_subcommand or ""):
                raise _extra_missing(entry_point, error) from error
            raise


def _extra_missing(entry_point: EntryPoint, error: ImportError) -> ExtraMissing:
    """The error of a command that cannot import something; raises ``error`` itself if no extra has it."""
    missing = extra_missing(f"forebay {entry_point.name}", entry_point.extras, error)
    if missing is None:
        raise error
    return missing


def _placeholder(missing: ExtraMissing) -> click.Command:
    """A command that only says what it needs, with whatever arguments it is called."""

    @click.command(
        help=f"{str(missing).partition(':')[0]}, which is not installed.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("_", nargs=-1)
    def command(**_: Any) -> None:
        raise missing

    return command


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="forebay")
def commands() -> None:
    """Serve the state of Spark streams by key, over REST, with the lag of every answer."""


def main() -> None:
    """Run the command line; a known error is printed as one line on standard error.

    It exits with the error's own status; with 1 if standard output takes nothing more.
    """
    if os.getpid() == 1:
        # The kernel drops signals to the first process of a container that it does not handle: a stop in its first
        # moments would be lost.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # A command's own line has the reason. Processes that run for long send these lines to their logs.
    logging.getLogger("forebay.kafka").addHandler(logging.NullHandler())
    prepare_streams()
    try:
        with naming_denials():
            commands()
    except ForebayError as error:
        print_line(f"forebay: {error}", to_stderr=True)
        sys.exit(error.exit_status)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        print_line(f"forebay: The output cannot be written: {error.strerror}. Write it elsewhere.", to_stderr=True)
        # What could not be written is tried again at exit, which would have its own status then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def settings_options(tier: Tier) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every setting of a tier; the command is called with the loaded ``settings``
    mapping."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(config: Path | None, **flags: str | None) -> None:
            function(load_settings(tier, flags, config=config))

        return _with_flags(command, settings_for(tier))

    return decorate


def worker_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags for some of a worker's settings; it is called with each by its name.

    They are read as a worker reads them, from the same config file too.
    """
    table = tuple(setting for setting in settings_for("worker") if setting.name in names)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(config: Path | None, **given: Any) -> None:
            flags = {name: given.pop(name) for name in names}
            function(**load_some("worker", names, flags, config=config), **given)

        return _with_flags(command, table)

    return decorate


def _with_flags(command: Callable[..., None], table: tuple[Setting, ...]) -> Callable[..., None]:
    command = click.option("--config", type=FILE, help="TOML file of settings.", metavar="FILE")(command)
    for setting in reversed(table):
        shown = f" [default: {setting.default_text}]" if setting.default_text else ""
        # Why: click writes UTF-8 to a terminal of ASCII.
        meaning = setting.help.replace("…", "...")
        # With a flag_value, even None, the value may be left out, and -1 would be an option of its own.
        alone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if setting.kind == "boolean" else {}
        command = click.option(
            setting.flag,
            setting.name,
            metavar="|".join(setting.choices) or setting.kind.upper(),
            **alone,
            help=f"{meaning} [env: {setting.environment}]{shown}{' [required]' * setting.required}",
        )(command)
    return command
