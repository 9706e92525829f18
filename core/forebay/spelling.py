"""The name that a misspelt one was probably to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """A question with the nearest of the known names, ``otherwise`` if none is near; from 0 to 1, ``cutoff`` says
    how near."""
    like = difflib.get_close_matches(name, known, 1, cutoff)
    return f"did you mean {like[0]!r}?" if like else otherwise
