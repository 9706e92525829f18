"""Turns links to files of the repository outside ``docs`` into plain text: the site does not contain them."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.structure.pages import Page


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """mkdocs' hook for the text of each page."""
    up = re.escape("../" * (page.file.src_uri.count("/") + 1))
    return re.sub(rf"\[([^\]]+)\]\({up}[^)]*\)", r"\1", markdown)
