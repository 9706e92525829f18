"""Who answers at an address: the small document that a router reads before it sends anything else there."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

IDENTITY_PATH = "/v1/identity"
MOST_IDENTITY_BYTES = 4 << 10


class Identity(NamedTuple):
    """A process: its tier and application, the id of its state, and which start of it this is.

    A router's application is None until it has found its workers.
    """

    tier: str
    application_id: str | None
    process_id: str
    incarnation: int

    def document(self) -> dict[str, Any]:
        """``GET /v1/identity``."""
        return self._asdict()

    @classmethod
    def parse(cls, body: bytes) -> Identity:
        """The inverse of ``document``; raises ``ValueError`` if it is no identity, or too long for one."""
        if len(body) > MOST_IDENTITY_BYTES:
            raise ValueError(f"{len(body)} bytes are more than an identity may take")
        document: Any = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError("it is no object")
        values: list[Any] = [document.get(name) for name in cls._fields]
        found = cls(*values)
        texts = found.tier, found.application_id or "", found.process_id
        if not all(type(text) is str for text in texts) or type(found.incarnation) is not int:
            raise ValueError("a member of it is missing, or of another type")
        return found
