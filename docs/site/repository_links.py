"""Turns links to files of the repository outside ``docs`` into plain text: the site does not contain them."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs' hook for the text of each page."""
    return _OUTSIDE.sub(r"\1", markdown)
