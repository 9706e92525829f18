"""The list routes: what a list has, of which kind of store, and whether of one key or of all."""

from __future__ import annotations

from typing import NamedTuple

from forebay.store_kinds import STORE_KINDS, StoreKind


class ScanRoute(NamedTuple):
    """A list route: the member with its items, the store kind it reads, whether it covers one key."""

    items: str
    kind: str
    keyed: bool

    @property
    def path(self) -> str:
        """The route's path."""
        return "/v1/stores/{store}/" + ("keys/{key}/" if self.keyed else "") + self.items

    @property
    def store_kind(self) -> StoreKind:
        """The store kind it reads."""
        return STORE_KINDS[self.kind]


SCAN_ROUTES = tuple(
    ScanRoute(kind.items, kind.name, keyed)
    for kind in STORE_KINDS.values()
    for keyed, exists in ((True, kind.lists_each_key), (False, kind.lists_all_keys))
    if exists
)
