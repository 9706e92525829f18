"""The paths of stores in requests."""

from __future__ import annotations

from forebay.errors import UnknownStore
from forebay.toml_tables import NAME, NAME_RULE


def store_path(store: str) -> str:
    """The path of a store; raises ``UnknownStore`` for a name that no store has."""
    if not NAME.fullmatch(store):
        raise UnknownStore(f"There is no store {store!r}: a name is made of {NAME_RULE}.", store=store)
    return f"/v1/stores/{store}"
