"""The console for commands' tables."""

from __future__ import annotations

import sys

from rich.console import Console

_PIPED_COLUMNS = 1_000


def terminal() -> Console:
    """As wide as the terminal; without one, names are not broken to fit. What looks like markup is printed
    unchanged."""
    width = None if sys.stdout.isatty() else _PIPED_COLUMNS
    return Console(width=width, markup=False, emoji=False, highlight=False)
