"""Pages of a replica's state and changes, for streams of many keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forebay.errors import NotReady
from forebay.position import Position, log_digest
from forebay.stored_keys import TIME_SIZE, successor
from forebay.wire.answers import provenance_members
from forebay.wire.parameters import ReadParameters
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage
from forebay_web.store_changes.selection import KeySelection
from forebay_worker.reads.admission import Admission, Admitted
from forebay_worker.reads.values import (
    all_unexpired,
    newest_version,
    scanned,
    scanned_in_chunks,
    stored_values,
    why_unproven,
)
from forebay_worker.tasks.recent_changes import ChangesSince

_MAX_ITEMS = 1_000
_MAX_SCANNED = 4_000
"""Keys read for a page, followed or not: some milliseconds, in which no other request is answered."""
_SEEK_COST = 16
"""How many entries of a scan take as long as starting one."""
_CHUNK = 16

Pairs = list[tuple[bytes, bytes]]


def changes_page(
    admission: Admission,
    selection: KeySelection,
    partition: int,
    cursor: ChangesCursor | None,
    parameters: ReadParameters,
    *,
    state: bool,
    page_bytes: int,
) -> ChangesPage:
    """The next page after a cursor, of the state or of what has changed since; raises ``Problem`` or
    ``Refused``.

    Without a cursor, or if it cannot be known what was deleted since, it is a reset, and the state's first.
    """
    replica = admission.replica(selection.spec, partition)
    admitted = admission.admit(replica, parameters)
    if (problem := why_unproven(admitted, selection.spec, None)) is not None:
        raise admission.refusal(admitted, problem)
    if admitted.view.log is None:
        unknown = "The identity of this replica's log is not known yet."
        raise admission.refusal(admitted, NotReady(unknown, retry_after_s=1))
    log = log_digest(admitted.view.log)
    if cursor is not None and admission.is_of_another_history(admitted.view, cursor.point):
        # What was sent may have been lost since: only the whole state says so.
        cursor = None
    if cursor is not None and cursor.log == log:
        admission.require_position(admitted, Position(log, {partition: cursor.upper}))
    read = _PageRead(selection, partition, admitted, page_bytes)
    if read.recent.end < admitted.view.progress.position:
        # Records come in bulk, of which no keys are noted.
        raise admission.refusal(
            admitted, NotReady("The replica is being restored; its changes are not known.", retry_after_s=1)
        )
    changed = None
    if cursor is not None and cursor.log == log:
        changed = read.recent.since(cursor.since, cursor.nonce, cursor.expired)
    if cursor is None or changed is None:
        end, nonce, expired = read.recent.reached
        begin = ChangesCursor(log, end, 0, nonce, after=b"", expired=expired)
        page = replace(read.state(begin), reset=True)
    elif state:
        page = read.state(cursor)
    else:
        page = read.changes(cursor, changed)
    return _stated(admission, page, cursor, admitted)


def _stated(
    admission: Admission, page: ChangesPage, before: ChangesCursor | None, admitted: Admitted
) -> ChangesPage:
    """The page with its provenance, and an upper bound of what any page so far may contain."""
    source = admission.replica_info(admitted).source
    view = admitted.replica.view
    upper = max(page.cursor.since, view.progress.applying_to)
    epoch = None if view.point is None else view.point.epoch
    if before is not None and before.log == page.cursor.log and before.upper > upper:
        upper, epoch = before.upper, before.epoch
    cursor = page.cursor._replace(upper=upper, epoch=epoch)
    return replace(page, cursor=cursor, source=provenance_members(source))


class _PageRead:
    """One read of one replica."""

    def __init__(self, selection: KeySelection, partition: int, admitted: Admitted, page_bytes: int) -> None:
        self._selection = selection
        self._partition = partition
        self._admitted = admitted
        self._expired_ms = admitted.expired_ms
        self._page_bytes = page_bytes
        self.recent = admitted.view.recent_changes
        self._items: list[bytes] = []
        self._gone: list[bytes] = []
        self._size_bytes = 0

    def state(self, cursor: ChangesCursor) -> ChangesPage:
        """The next items of the state, as it is now."""
        assert cursor.after is not None
        spent = 0
        for pairs, up_to in self._state(cursor.after):
            spent += _SEEK_COST + len(pairs)
            if pairs:
                self._add(pairs)
            if self._full or spent >= _MAX_SCANNED:
                return self._page(cursor._replace(after=up_to), more=True)
        return self._page(cursor._replace(after=None))

    def changes(self, cursor: ChangesCursor, changed: ChangesSince) -> ChangesPage:
        """The keys that changed since, each with its present value."""
        end, nonce, _ = changed.reached
        skip = cursor.skip if cursor.nonce == nonce else 0
        seen: set[bytes] = set()
        spent = 0
        for begin, batch_end, keys in changed.batches:
            first = skip if begin == cursor.since else 0
            for at in range(first, len(keys), _CHUNK):
                spent += len(keys[at : at + _CHUNK])
                self._add_changed(list(self._followed(keys[at : at + _CHUNK], cursor.after)), seen)
                if self._full or spent >= _MAX_SCANNED:
                    part = at + _CHUNK < len(keys)
                    since, skipped = (begin, at + _CHUNK) if part else (batch_end, 0)
                    return self._page(cursor._replace(since=since, skip=skipped, nonce=nonce), more=True)
        return self._expired(cursor._replace(since=end, skip=0, nonce=nonce), changed, seen)

    def _expired(self, cursor: ChangesCursor, changed: ChangesSince, seen: set[bytes]) -> ChangesPage:
        """The page after the changes, with the keys that have expired since."""
        for at in range(0, len(changed.expired), _CHUNK):
            some = tuple(changed.expired[at : at + _CHUNK])
            self._add_changed(list(self._followed(some, cursor.after)), seen)
            cursor = cursor._replace(expired=cursor.expired + len(some))
            if self._full or at >= _MAX_SCANNED:
                return self._page(cursor, more=cursor.expired < changed.reached.expired)
        return self._page(cursor._replace(expired=changed.reached.expired))

    @property
    def _full(self) -> bool:
        count = len(self._items) + len(self._gone)
        return count >= _MAX_ITEMS or self._size_bytes >= self._page_bytes

    def _page(self, cursor: ChangesCursor, *, more: bool = False) -> ChangesPage:
        return ChangesPage(cursor, {}, self._items, self._gone, more)

    def _add(self, pairs: Pairs) -> None:
        selected = self._selection.scan.selected(pairs, self._admitted.replica.view.oldest_kept_ms)
        selected = all_unexpired(selected, self._expired_ms)
        if selected:
            keys, values = map(list, zip(*selected, strict=True))
            items = self._selection.scan.items(keys, values)
            self._items += items
            self._size_bytes += sum(map(len, items))

    def _followed(self, keys: tuple[bytes, ...], after: bytes | None) -> Iterator[bytes]:
        """The changed keys that belong to the stream, of which the state was sent; of versions their key alone."""
        has = self._selection.has
        if self._selection.versioned:
            keys = tuple(dict.fromkeys(key[:-TIME_SIZE] for key in keys))
        return (key for key in keys if has(key) and (after is None or key <= after))

    def _add_changed(self, keys: list[bytes], seen: set[bytes]) -> None:
        """Their present values, each key once."""
        keys = [key for key in dict.fromkeys(keys) if key not in seen]
        seen.update(keys)
        if not keys:
            return
        if self._selection.versioned:
            found = [(key, newest_version(self._admitted, key)) for key in keys]
            gone = [key for key, pair in found if pair is None]
            self._add([pair for _, pair in found if pair is not None])
        else:
            values = stored_values(self._admitted, keys, self._expired_ms)
            gone = [key for key, value in zip(keys, values, strict=True) if value is None]
            self._add([(key, value) for key, value in zip(keys, values, strict=True) if value is not None])
            oldest_ms = self._admitted.replica.view.oldest_kept_ms
            gone = [key for key, _ in self._selection.scan.selected([(key, b"") for key in gone], oldest_ms)]
        if gone:
            names = self._selection.names(gone)
            self._gone += names
            self._size_bytes += sum(map(len, names))

    def _state(self, after: bytes) -> Iterator[tuple[Pairs, bytes]]:
        """What follows a stored key, a few entries at a time, each with the stored key up to which that is all."""
        for start, end in self._selection.ranges(self._partition):
            if end <= after:
                continue
            if self._selection.versioned:
                yield from self._newest_versions(start, end, after)
            else:
                begin, up_to = max(start, after + b"\x00") if after else start, max(start, after)
                for pairs in scanned_in_chunks(self._admitted, begin, end, reverse=False, most=_CHUNK):
                    up_to = pairs[-1][0]
                    yield pairs, up_to
                yield [], up_to

    def _newest_versions(self, start: bytes, end: bytes, after: bytes) -> Iterator[tuple[Pairs, bytes]]:
        at = max(start, successor(after[:-TIME_SIZE])) if after else start
        up_to = max(after, start + bytes(TIME_SIZE))
        while (first := next(scanned(self._admitted, at, end), None)) is not None:
            prefix = first[0][:-TIME_SIZE]
            newest = newest_version(self._admitted, prefix)
            up_to = first[0]
            yield [] if newest is None else [newest], up_to
            at = successor(prefix)
        yield [], up_to
