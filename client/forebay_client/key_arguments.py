"""A command whose arguments may be keys that begin with a dash."""

from __future__ import annotations

import difflib
from typing import Any

import click


class KeyCommand(click.Command):
    """Takes words such as ``-5`` for arguments, but none that begins with two dashes, unless it follows ``--``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See ``click.Command``; raises ``click.NoSuchOption`` for what is probably a misspelt option."""
        before = args[: args.index("--")] if "--" in args else args
        unknown = next((word for word in self._arguments(ctx, before) if word.startswith("--")), None)
        if unknown is not None and not ctx.resilient_parsing:
            name = unknown.partition("=")[0]
            known = [option for param in self.get_params(ctx) for option in param.opts]
            message = f"No such option {name!r}. A key that begins with two dashes follows a bare --."
            raise click.NoSuchOption(name, message, difflib.get_close_matches(name, known, 1), ctx)
        return super().parse_args(ctx, args)

    def _arguments(self, ctx: click.Context, words: list[str]) -> list[str]:
        """Those of the words that are neither options nor their values."""
        try:
            values, rest, _ = self.make_parser(ctx).parse_args(args=[*words])
        except click.UsageError:
            # Without what follows a bare --, an option may lack its value.
            return []
        names = [param.name for param in self.get_params(ctx) if isinstance(param, click.Argument)]
        return [word for word in (*(values.get(name or "") for name in names), *rest) if isinstance(word, str)]
