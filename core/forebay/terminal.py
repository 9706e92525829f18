"""Where commands print their tables."""

from __future__ import annotations

import sys

from rich.console import Console

_PIPED_COLUMNS = 1_000


def terminal(*, markup: bool = False) -> Console:
    """As wide as the terminal; where there is none, names are not broken to fit one.

    Without ``markup``, what looks like it is printed as it is.
    """
    width = None if sys.stdout.isatty() else _PIPED_COLUMNS
    return Console(width=width, markup=markup, emoji=False, highlight=False)
