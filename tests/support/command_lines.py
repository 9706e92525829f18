"""What the deployment files' command lines and variables mean to the real commands."""

from typing import Any

import click

from forebay.cli import commands
from forebay.setting_sources import load_settings


def settings_of(command_line: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The settings of a command line without its program's name, by the real command."""
    tier, *arguments = command_line
    command = commands.get_command(click.Context(commands), tier)
    assert command is not None
    given = command.make_context(tier, arguments).params
    given.pop("config")
    return load_settings(tier, given, environment=environment)
