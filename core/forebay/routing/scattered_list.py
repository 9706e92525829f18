"""A list over several partitions: what was read of each, and up to where all of it is known.

It does no I/O. Its driver reads the pages, and says what time it is, on the boot-time clock. How pages are merged
is in ``forebay.wire.scan_pages``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import DeadlineExceeded, NoReplica, Problem
from forebay.lag import Lag, Tolerance, worst_lag
from forebay.wire.scan_pages import SKIPPED_OLD, ScanPage, joined_position, merge, window_end
from forebay.wire.scans import Cursor, Scan

FIRST_PAGES_BYTES = 2 << 20
"""What the first pages of a list may take together, unless its partitions are many: dozens of small lists that one
client has in flight, behind a worker that hangs, are no reason to refuse it."""
_MIN_PAGE_BYTES = 64 << 10
_CURSOR_FRAME_BYTES = 64
"""Of a cursor, what is neither its key nor its position."""
_MAX_ATTEMPTS = 256
"""In one problem, of a list over many partitions."""


def page_bytes_of(partitions: int) -> int:
    """How large a page may become if as many are held at once."""
    return max(_MIN_PAGE_BYTES, FIRST_PAGES_BYTES // max(1, partitions))


@dataclass
class PartitionPages:
    """One partition's part of a list: its current page, and where the next one starts."""

    partition: int
    first: tuple[bytes | None, str | None]
    """Where it starts: after this stored key, and at this position at least."""
    page: ScanPage | None = None
    last: bytes | None = field(init=False)
    at: str | None = field(init=False)
    lag: Lag | None = None
    """The largest lag of any of its pages on arrival."""
    as_of_boot_ms: float = 0.0

    def __post_init__(self) -> None:
        self.last, self.at = self.first

    def take(self, page: ScanPage, as_of_boot_ms: float) -> None:
        """Continue with the next page; the lag of earlier ones remains part of the answer's lag."""
        lag = Lag(**page.source["lag"])
        if self.lag is not None:
            lag = worst_lag([self.lag.aged(as_of_boot_ms - self.as_of_boot_ms), lag])
        self.lag, self.as_of_boot_ms = lag, as_of_boot_ms
        if self.page is not None and SKIPPED_OLD in page.source:
            page.source[SKIPPED_OLD] += self.page.source.get(SKIPPED_OLD, 0)
        self.page, self.at = page, page.source["position"]
        self.last = page.last

    def source(self, now_boot_ms: float) -> dict[str, Any]:
        """Its provenance, from its last page, with the answer's present lag."""
        assert self.page is not None
        return {**self.page.source, "lag": self.lag_at(now_boot_ms).document()}

    def lag_at(self, now_boot_ms: float) -> Lag:
        assert self.lag is not None
        return self.lag.aged(now_boot_ms - self.as_of_boot_ms)

    def begin_again(self) -> None:
        """Forget the first page."""
        self.page = self.lag = None
        self.last, self.at = self.first

    @property
    def drained(self) -> bool:
        """Whether the current page is used up and there is another."""
        return self.page is not None and self.page.more and not self.page.keys

    @property
    def max_cursor_bytes(self) -> int:
        """What the cursor of its next page takes at most, also as a body: a cursor is base64 of a key and a
        position."""
        return 0 if self.last is None else 4 * (len(self.last) + len(self.at or "") + _CURSOR_FRAME_BYTES) // 3

    def cursor(self, scan: Scan) -> str | None:
        """Where its next page starts, None at the beginning."""
        return None if self.last is None else Cursor(scan.digest, self.last, self.at).encode()


@dataclass
class ScatteredList:
    """A list on its way: the partitions that are read, those that are missing, and what was sent."""

    scan: Scan
    parts: dict[int, PartitionPages] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    lost: list[PartitionPages] = field(default_factory=list)
    """Partitions lost on the way: some of their items are in the list."""
    sent_up_to: bytes | None = None
    """The stored key up to which everything was sent."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """What the list states of its partitions, with their lag as of the last item sent."""

    @classmethod
    def begin(cls, scan: Scan, partitions: Iterable[int], cursor: str | None) -> ScatteredList:
        """A list of these partitions, after a cursor if there is one; raises ``BadParameter``."""
        after = None if cursor is None else Cursor.decode(cursor, scan)
        first = (None, None) if after is None else (after.last, after.at)
        missing = set(() if after is None else after.missing)
        parts = {one: PartitionPages(one, first) for one in partitions if one not in missing}
        return cls(scan, parts, missing)

    def begin_again(self, tolerance: Tolerance, now_boot_ms: float) -> list[tuple[PartitionPages, Lag]]:
        """Drop the first pages that have left their bounds; returns how far behind they are."""
        early = [(part, part.lag_at(now_boot_ms)) for part in self.parts.values()]
        early = [(part, lag) for part, lag in early if not tolerance.met_by(lag)]
        for part, _ in early:
            part.begin_again()
        return early

    def leave_out(self, part: PartitionPages) -> None:
        """Continue without a partition."""
        self.missing.add(part.partition)
        del self.parts[part.partition]
        if part.page is not None:
            self.lost.append(part)

    def merge_some(self) -> tuple[list[bytes], Callable[[int], bytes], bytes | None]:
        """The first thousands of current items that no later page can precede, in order; removed from the pages.

        They take no longer than a turn of the event loop. Returns items, the stored key of each by its place, and
        the one up to which they are complete, None for the end.
        """
        pages, reverse = [part.page for part in self.parts.values() if part.page is not None], self.scan.reverse
        bound = window_end(pages, reverse=reverse)
        return *merge([page.take_to(bound, reverse=reverse) for page in pages], reverse=reverse), bound

    def keeps_bounds(self, tolerance: Tolerance, now_boot_ms: float) -> bool:
        """Whether the list's present lag is within its bounds; it is then what the list states."""
        parts = [*self.parts.values(), *self.lost]
        sources = [part.source(now_boot_ms) for part in parts if part.page is not None]
        if tolerance.met_by(_worst(sources)):
            self.sources = sources
            return True
        if self.sent_up_to is None:
            # For the refusal.
            self.sources = sources
        return False

    @property
    def lag(self) -> Lag:
        """The largest lag of any partition that the list states."""
        return _worst(self.sources)

    def cursor(self, up_to: bytes | None) -> Cursor | None:
        """Where the list goes on after a stored key; None at its end."""
        if up_to is None:
            return None
        return Cursor(self.scan.digest, up_to, joined_position(self.sources), tuple(sorted(self.missing)))


def attempts_at_all(problems: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The attempts at partitions that could not be read, of the problem of each."""
    return [
        {"partition": problem.get("partition"), **attempt}
        for problem in problems
        for attempt in problem.get("attempts", ())
    ][:_MAX_ATTEMPTS]


def unread(store: str, statuses: Collection[int], problems: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem of a list of which no partition could be read, unless all were refused for their lag.

    It has the attempts of each partition's problem, and quotes the first problem.
    """
    text, attempts = f"No partition of {store!r} could be read", attempts_at_all(problems)
    if set(statuses) == {DeadlineExceeded.status}:
        return DeadlineExceeded(f"{text} in time.", store=store, attempts=attempts)
    detail = problems[0].get("detail") if problems else None
    text += f", the first: {detail}" if detail else "."
    return NoReplica(text, retry_after_s=1, store=store, attempts=attempts)


def _worst(sources: list[dict[str, Any]]) -> Lag:
    return worst_lag([Lag(**source["lag"]) for source in sources])
