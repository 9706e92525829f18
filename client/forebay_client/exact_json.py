"""JSON that is printed again with its numbers unchanged, even if they are longer than Python's."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any


class ExactJson:
    """A JSON document whose numbers with a fraction or an exponent stay as they were written."""

    def __init__(self, text: str) -> None:
        self._mark = secrets.token_hex(8)
        self.document: Any = json.loads(text, parse_float=lambda number: self._mark + number)
        """What it contains; such numbers are marked strings."""

    def text(self, part: Any = None, *, indent: int | None = None) -> str:
        """The JSON text of a part of the document, or of all."""
        separators = None if indent else (",", ":")
        shown = self.document if part is None else part
        text = json.dumps(shown, indent=indent, ensure_ascii=False, separators=separators)
        return re.sub(f'"{self._mark}([^"]*)"', r"\1", text)


def exact_text(document: Any) -> str:
    """The JSON text of a document with decimals, which are written as numbers, exactly."""
    mark = secrets.token_hex(8)
    text = json.dumps(document, ensure_ascii=False, default=lambda number: f"{mark}{number}")
    return re.sub(f'"{mark}([^"]*)"', r"\1", text)
