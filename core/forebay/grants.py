"""Grants: who may do what with which stores. What is not granted is not allowed.

A principal is the name of a token in a tokens file, or the subject of an issuer's token. Paths say which verb of
which store a request needs, and of which key; what only a query or a body tells is checked by whoever reads that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct

from forebay.bearer_tokens import BearerTokens, TokenHolder
from forebay.clock import boot_ms, epoch_ms, time_text
from forebay.errors import BadKey, Forbidden
from forebay.logs import LinesInBackground
from forebay.reloaded_file import ReloadedFile
from forebay.request_trace import current
from forebay.store_spec import StoreSpec

Verb: TypeAlias = Literal["read", "list", "follow", "metadata", "admin"]
"""``read`` is of keys that are named, ``list`` of all keys, ``follow`` of streams, ``metadata`` of stores, hosts
and lags, and ``admin`` of what shows all of a process."""
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_MAX_REMEMBERED = 4_096
_OF_A_STORE = re.compile(
    r"/v1/(?:metadata/)?stores/(?P<store>[^/]+)(?:/(?:keys/(?P<key>[^/]+)(?:/(?P<of_key>[^/]+))?|(?P<what>[^/]+)))?"
)
_OF_KEYS = {None: "read", "changes": "follow"}
_OF_STORES = {"batch-get": "read", "changes": "follow", "entries": "list", "windows": "list", "sessions": "list"}
_OF_ALL_STORES = frozenset({"/v1/stores", "/v1/metadata", "/v1/lags", "/v1/health", "/v1/timeline"})
"""Paths of documents that show what a principal may see of each store."""
_TICKETS = "/v1/tickets"
"""Its body names the store; whoever issues the ticket checks that."""


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the table."""

    stores: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    """Names, or patterns with ``*`` and ``?``."""
    verbs: Annotated[frozenset[Verb], Meta(min_length=1)]
    principal: str | None = None
    claims: dict[str, str] = msgspec.field(default_factory=dict, name="claim")
    """What an issuer's token must claim: each the value itself, or one of a list."""
    key_prefix: str = ""
    """What keys begin with, as texts in a path; empty for all."""

    def __post_init__(self) -> None:
        if self.principal is None and not self.claims:
            raise ValueError("needs a principal, the name of a token or the subject of one, or a claim")

    def is_for(self, holder: TokenHolder) -> bool:
        """Whether it is a principal's."""
        if self.principal is not None and self.principal != holder.name:
            return False
        return all(_claims(holder.claims.get(name), wanted) for name, wanted in self.claims.items())


def _claims(claimed: Any, wanted: str) -> bool:
    return wanted in claimed if isinstance(claimed, list) else claimed == wanted


class Needed(NamedTuple):
    """What a request needs to be granted."""

    verb: str
    store: str | None
    key: str | None = None
    """The key in its path, None if it has none."""


def needed_for(path: str) -> Needed:
    """What a request to a path, as received, needs."""
    found = _OF_A_STORE.fullmatch(path)
    if path == _TICKETS:
        return Needed("follow", None)
    if found is None:
        return Needed("metadata" if path in _OF_ALL_STORES else "admin", None)
    store, key, of_key, what = found.group("store", "key", "of_key", "what")
    store = unquote(store) if "%" in store else store
    if path.startswith("/v1/metadata/"):
        return Needed("metadata", store, None if key is None else unquote(key))
    if key is not None:
        return Needed(_OF_KEYS.get(of_key, "read"), store, unquote(key) if "%" in key else key)
    return Needed(_OF_STORES.get(what or "", "metadata"), store)


@dataclass(frozen=True)
class Access:
    """What one principal may do."""

    holder: TokenHolder
    grants: tuple[Grant, ...]
    """Those of the whole table when it was read, by which this is known to be of the table in effect."""
    own: tuple[Grant, ...]
    refused: Callable[[str, Needed], None]

    @cached_property
    def prefixes(self) -> Callable[[str, str], list[str]]:
        """Within which prefixes it may do something, by its verb, with keys of a store; none if nowhere."""
        return lru_cache(_MAX_REMEMBERED)(self._prefixes)

    def _prefixes(self, verb: str, store: str) -> list[str]:
        return [
            grant.key_prefix
            for grant in self.own
            if verb in grant.verbs and any(fnmatchcase(store, pattern) for pattern in grant.stores)
        ]

    def sees(self, store: str) -> bool:
        """Whether documents about all stores show it this one."""
        return bool(self.prefixes("metadata", store))

    def require(self, needed: Needed) -> None:
        """Raise ``Forbidden`` unless it is granted; without a key, unless it is for some keys of the store."""
        if needed.store is None:
            if not any(needed.verb in grant.verbs for grant in self.own):
                self._refuse(needed, f"has no grant with the verb {needed.verb!r}")
            return
        prefixes = self.prefixes(needed.verb, needed.store)
        if not prefixes:
            self._refuse(needed, f"has no grant with the verb {needed.verb!r} for the store {needed.store!r}")
        if needed.key is not None and not needed.key.startswith(tuple(prefixes)):
            self._outside(needed, prefixes)

    def require_range(self, verb: str, store: str, prefix: str) -> None:
        """Raise ``Forbidden`` unless all keys with a prefix are within reach."""
        prefixes = self.prefixes(verb, store)
        if not prefix.startswith(tuple(prefixes)):
            self._outside(Needed(verb, store), prefixes)

    def require_keys(self, verb: str, spec: StoreSpec, keys: Iterable[Any]) -> Iterator[None]:
        """The same for single keys, as JSON values, one in each step."""
        prefixes, codec = self.prefixes(verb, spec.name), spec.key_codec
        if "" not in prefixes:
            for key in keys:
                # One that is no key is refused by whoever reads it.
                with contextlib.suppress(BadKey):
                    self.require(Needed(verb, spec.name, codec.to_text(codec.from_json(key)).decode()))
                yield

    def _outside(self, needed: Needed, prefixes: list[str]) -> None:
        within = " or ".join(map(repr, sorted(prefixes)))
        self._refuse(needed, f"may {needed.verb} of the store {needed.store!r} only keys that begin with {within}")

    def _refuse(self, needed: Needed, what: str) -> None:
        self.refused(self.holder.name, needed)
        members: dict[str, Any] = {} if needed.store is None else {"store": needed.store}
        detail = f"{self.holder.name!r} {what}; an operator can add it to the grants."
        raise Forbidden(detail, verb=needed.verb, **members)


class GrantedTokens(BearerTokens):
    """Accepts what some tokens accept, as far as a file of grants allows it.

    The file is read again within a second of a change.
    """

    def __init__(
        self,
        tokens: BearerTokens,
        path: Path,
        clock: Callable[[], float] = boot_ms,
        audit: AuditLog | None = None,
    ) -> None:
        self._tokens = tokens
        self._path = path
        self._audit = audit or AuditLog(sys.stderr)
        self._file = ReloadedFile(path, self._read, clock)
        self._known: dict[bytes, Access] = {}

    def _read(self, text: str) -> tuple[Grant, ...]:
        grants = read_grants(text)
        self._audit.write("grants-read", file=str(self._path), grants=len(grants))
        return grants

    def access(self, authorization: bytes) -> Access:
        """What a request's principal may do; raises as ``holder`` does."""
        holder, grants = self._tokens.holder(authorization), self._file()
        known = self._known.get(authorization)
        if known is None or known.holder is not holder or known.grants is not grants:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            own = tuple(grant for grant in grants if grant.is_for(holder))
            known = self._known[authorization] = Access(holder, grants, own, self._refused)
        return known

    def authenticate(self, method: str, path: str, authorization: bytes) -> None:
        """Raise ``Forbidden`` too."""
        self.access(authorization).require(needed_for(path))

    def holder(self, authorization: bytes) -> TokenHolder:
        return self._tokens.holder(authorization)

    def is_accepted(self, holder: TokenHolder, now_epoch_ms: float) -> bool:
        return self._tokens.is_accepted(holder, now_epoch_ms)

    def digests(self) -> frozenset[bytes]:
        return self._tokens.digests()

    def _refused(self, principal: str, needed: Needed) -> None:
        self._audit.write("refused", principal=principal, verb=needed.verb, store=needed.store)


class _GrantsDocument(Struct, forbid_unknown_fields=True):
    grant: list[Grant] = []


def read_grants(text: str) -> tuple[Grant, ...]:
    """The grants of a TOML document; raises ``ValueError``."""
    return tuple(msgspec.convert(tomllib.loads(text), _GrantsDocument).grant)


class AuditLog(LinesInBackground):
    """Lines of JSON, of which none has a key or a value."""

    def write(self, event: str, **members: Any) -> None:
        """Add a line; if too many wait, it is dropped, and a later one says how many were."""
        trace = current.get()
        request = {} if trace is None else {"request_id": trace.request_id}
        self.emit(logging.makeLogRecord({"msg": _audit_line(event, **members, **request)}))

    def _of_dropped(self, dropped: int) -> str:
        return _audit_line("dropped", lines=dropped)


def _audit_line(event: str, **members: Any) -> str:
    return json.dumps({"audit": event, "at": time_text(int(epoch_ms())), **members})
