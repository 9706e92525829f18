"""Who answers at an address: the small document that a router reads before it sends anything else there."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from forebay.wire.answer_schemas.members import read_json

IDENTITY_PATH = "/v1/identity"
MAX_IDENTITY_BYTES = 4 << 10


class Identity(Struct, frozen=True):
    """A process: its tier and application, the id of its state, and which start of it this is.

    A router's application is None until it has found its workers.
    """

    tier: Literal["worker", "router"]
    application_id: str | None
    process_id: str
    incarnation: int

    @classmethod
    def parse(cls, body: bytes) -> Identity:
        """The identity in a body; raises ``ValueError`` if it is none, or too long for one."""
        if len(body) > MAX_IDENTITY_BYTES:
            raise ValueError(f"{len(body)} bytes are more than an identity may take")
        return read_json(body, cls)
