"""Following many keys of a store: what is asked for, and what its events become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from forebay.errors import BadParameter, Problem
from forebay.lag import Lag
from forebay.store_kinds import STORE_KINDS
from forebay.store_spec import StoreSpec
from forebay.wire.answers import ReplicaInfo, problem_of
from forebay.wire.server_sent_events import Event
from forebay_client.options import ReadOptions, check, range_parameters
from forebay_client.results import (
    ITEM_TYPES,
    Entry,
    SessionWindow,
    Window,
    headers_of,
    lag_of,
    parse_document,
    provenance_of,
)

Item: TypeAlias = Entry | Window | SessionWindow
_ITEM_TYPES = {kind.items: ITEM_TYPES[kind.name] for kind in STORE_KINDS.values() if kind.lists_all_keys}
"""Single values are followed as entries."""


@dataclass(frozen=True)
class _Items:
    """Items of one partition, and which replica they are of."""

    store: str
    items: tuple[Item, ...]
    source: ReplicaInfo

    @property
    def lag(self) -> Lag:
        """How far behind they are."""
        return self.source.lag


class Values(_Items):
    """Items of one partition with their present values, each the newest of its key."""


class Absent(_Items):
    """Items of one partition that were deleted; their value and timestamp are None."""


@dataclass(frozen=True)
class Reset:
    """Partitions whose items are to be forgotten: their state follows, without what was deleted meanwhile."""

    store: str
    partitions: tuple[int, ...]
    lag: Lag | None = None


@dataclass(frozen=True)
class StoreLag:
    """All that is known was yielded, and is this far behind: the worst of all partitions."""

    store: str
    lag: Lag


StoreChange: TypeAlias = Values | Absent | Reset | StoreLag | Problem
"""What following many keys yields."""


@dataclass(frozen=True)
class StoreChangesRequest:
    """Keys to follow, a range of them, or the whole store; of windows and sessions, the range is of times."""

    store: str
    keys: Sequence[Any] | None
    prefix: str | bytes | None
    start: Any
    end: Any
    lag_interval_ms: int | None
    options: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        check(self.options)
        if isinstance(self.keys, str | bytes):
            raise TypeError(f"keys is a list, and {self.keys!r} is one key.")

    @property
    def name(self) -> str:
        """What is followed, for messages."""
        return f"many keys of {self.store!r}"

    def parameters(self, spec: StoreSpec) -> dict[str, Any]:
        """The query of the request; raises ``BadKey`` or ``BadParameter``."""
        codec = spec.key_codec
        for key in self.keys or ():
            codec.from_json(key)
        if self.keys is not None and not self.keys:
            raise BadParameter("keys is empty; leave it out to follow the whole store.", parameter="keys")
        kind = STORE_KINDS.get(spec.kind)
        of_keys = kind is None or kind.has_single_values
        ranged = range_parameters(codec if of_keys else None, self.start, self.end)
        keys = None if self.keys is None else json.dumps(list(self.keys), ensure_ascii=False)
        return {"keys": keys, "prefix": self.prefix, **ranged}

    def change_of(self, event: Event, *, decimals: bool) -> StoreChange:
        """The content of an event; raises ``ValueError`` and the like for another stream's."""
        document = parse_document(event.data, decimals=decimals)
        match event.name:
            case "values" | "absent":
                member = next(name for name in _ITEM_TYPES if name in document)
                kind = _ITEM_TYPES[member]
                names = kind.__match_args__
                found = [{**item, "headers": headers_of(item)} for item in document[member]]
                items = tuple([kind(*(item.get(name) for name in names)) for item in found])
                result = Values if event.name == "values" else Absent
                return result(document["store"], items, provenance_of(document))
            case "reset":
                return Reset(document["store"], tuple(document["partitions"]))
            case "lag":
                return StoreLag(document["store"], lag_of(document))
        return problem_of(document)

    def mismatch(self, change: StoreChange) -> str | None:
        """How a change is of another store, None if it is not."""
        store = change.members.get("store", self.store) if isinstance(change, Problem) else change.store
        return None if store == self.store else f"the store {store!r} for {self.store!r}"
