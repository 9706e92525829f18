"""One page of a list over all keys, of a partition-aware client: a part from the workers of each partition.

They are merged as a router does it. An asynchronous client asks for several parts at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from forebay.clock import boot_ms
from forebay.errors import LagExceedsTolerance, Problem
from forebay.lag import Lag, Tolerance
from forebay.routing.scattered_list import (
    PartitionPages,
    ScatteredList,
    attempts_at_all,
    page_bytes_of,
    unread,
)
from forebay.store_spec import StoreSpec
from forebay.wire.answer_aging import bounds_exceeded, time_reserved_for_retry_ms
from forebay.wire.list_bodies import list_head, list_tail
from forebay.wire.list_routes import SCAN_ROUTES
from forebay.wire.parameters import ENTRIES_PARAMETERS, parse_parameters
from forebay.wire.problems import problem_of
from forebay.wire.retryable_statuses import TRANSIENT
from forebay.wire.scans import Scan, make_scan, posted_cursor
from forebay_client.documents import parse_document
from forebay_client.exchange import Plan, Request, not_of_a_read, together
from forebay_client.options import query_string
from forebay_client.partitioned_exchange import PartitionedExchange
from forebay_client.request_identity import Requested
from forebay_client.target_partition import TargetPartition

_ROUTES = {route.items: route for route in SCAN_ROUTES if not route.keyed}
_SPREAD = 3.0
"""Standard deviations by which partitions may hold more of a page than others."""
_NOT_FORWARDED = frozenset({"limit", "cursor", "allow_partial"})


def scattered_page(
    exchange: PartitionedExchange,
    spec: StoreSpec,
    path: str,
    items: str,
    parameters: Mapping[str, Any],
    deadline_ms: float,
) -> Plan[dict[str, Any]]:
    """The document of a page, as a router answers it; raises ``Problem``.

    ``parameters`` are those of the query, of which ``cursor`` may have any length.
    """
    given = {name: value for name, value in parameters.items() if name != "cursor"}
    parsed = parse_parameters(query_string(given).encode(), ENTRIES_PARAMETERS)
    scan = make_scan(_ROUTES[items], spec, None, parsed)
    listed = ScatteredList.begin(scan, range(spec.partitions), parameters["cursor"])
    page = _ScatteredPage(
        exchange,
        listed,
        f"{path}/{items}",
        {name: value for name, value in parameters.items() if name not in _NOT_FORWARDED},
        parsed.tolerance_for(spec),
        parsed.limit,
        parsed.allow_partial,
        deadline_ms,
    )
    return (yield from page.read())


@dataclass
class _ScatteredPage:
    """A page on its way."""

    exchange: PartitionedExchange
    listed: ScatteredList
    path: str
    parameters: dict[str, Any]
    """Those of the request for each partition's part."""
    tolerance: Tolerance
    limit: int
    allow_partial: bool
    deadline_ms: float
    refused: list[Problem] = field(default_factory=list)
    """Why partitions are missing."""

    @property
    def _scan(self) -> Scan:
        return self.listed.scan

    def read(self) -> Plan[dict[str, Any]]:
        """The page's document; raises ``Problem``."""
        listed, left_ms = self.listed, self.deadline_ms - self.exchange.now_ms
        first_until_ms = self.deadline_ms - time_reserved_for_retry_ms(self.tolerance, left_ms)
        # Those asked at once would not wait for one that learns the map.
        yield from self.exchange.refresh(first_until_ms)
        yield from self._fetch(list(listed.parts.values()), first_until_ms)
        yield from self._renew_early()
        if not listed.parts:
            raise self._nothing_read()
        items, key_at, up_to = listed.merge()
        if len(items) > self.limit:
            items, up_to = items[: self.limit], key_at(self.limit - 1)
        if not listed.keeps_bounds(self.tolerance, boot_ms()):
            raise self._out_of_bounds(listed.lag)
        tail = list_tail(listed.sources, listed.cursor(up_to), listed.missing)
        return _document(list_head(self._scan) + b",".join(items) + tail, self.exchange.decimals)

    def _fetch(self, parts: Sequence[PartitionPages], until_ms: float) -> Plan[None]:
        """Get the page of some partitions; a refused one is left out if that is allowed."""
        at_once = self.exchange.at_once
        turns = math.ceil(len(parts) / at_once)
        plans = [self._fetch_one(part, until_ms, turns - at // at_once) for at, part in enumerate(parts)]
        yield from together(plans, at_once)

    def _fetch_one(self, part: PartitionPages, until_ms: float, turns_left: int) -> Plan[None]:
        left_ms = until_ms - self.exchange.now_ms
        # A partition that nobody serves must leave the others some time, unless they are of no use without it.
        share_ms = left_ms / turns_left if self.allow_partial else left_ms
        try:
            yield from self._read(part, self.exchange.now_ms + share_ms)
        except Problem as problem:
            self._leave_out(part, problem)

    def _read(self, part: PartitionPages, until_ms: float) -> Plan[None]:
        cursor, partitions = part.cursor(self._scan), len(self.listed.parts)
        body = None if cursor is None else posted_cursor(cursor)
        parameters = {
            **self.parameters,
            "partition": part.partition,
            "limit": share(self.limit, partitions),
            "cursor": cursor if body is None else None,
        }
        mismatch, page_bytes = partial(self._mismatch, part.partition), page_bytes_of(partitions)
        target = TargetPartition(self.exchange.workers, self._scan.spec, part.partition)
        request = Request(self.path, parameters, mismatch, body, target=target, page_bytes=page_bytes)
        document, as_of_boot_ms = yield from self.exchange.ask_timed(request, target, until_ms)
        part.take(document["page"], as_of_boot_ms)

    def _mismatch(self, partition: int, document: Mapping[str, Any]) -> str | None:
        if "type" in document:
            return Requested(self._scan.spec.name).mismatch(document)
        if document["scan"] != self._scan.digest.hex():
            return "a page of another list"
        answered = document["page"].source["partition"]
        return None if answered == partition else f"partition {answered} for {partition}"

    def _renew_early(self) -> Plan[None]:
        """Request again, once, pages that left their bounds while others were read."""
        early = self.listed.begin_again(self.tolerance, boot_ms())
        if early:
            # A replica at the edge of the bounds would soon leave them again.
            self.parameters["prefer"] = "active"
            yield from self._fetch([part for part, _ in early], self.deadline_ms)
            for part, lag in self.listed.begin_again(self.tolerance, boot_ms()):
                self._leave_out(part, self._out_of_bounds(lag))

    def _leave_out(self, part: PartitionPages, problem: Problem) -> None:
        """Continue without a partition if that is allowed; raises the problem otherwise."""
        if not (self.allow_partial and problem.status in TRANSIENT):
            raise problem
        self.refused.append(problem)
        self.listed.leave_out(part)

    def _out_of_bounds(self, lag: Lag) -> Problem:
        return problem_of(json.loads(bounds_exceeded(self._scan.spec.name, self.tolerance, lag).body))

    def _nothing_read(self) -> Problem:
        statuses = {problem.status for problem in self.refused}
        problems = [problem.document() for problem in self.refused]
        if statuses == {LagExceedsTolerance.status}:
            self.refused[0].members["attempts"] = attempts_at_all(problems)
            return self.refused[0]
        return unread(self._scan.spec.name, statuses, problems)


def share(limit: int, partitions: int) -> int:
    """How many items of each partition make a page, most likely: keys are spread evenly, give or take."""
    even = limit / max(1, partitions)
    return min(limit, math.ceil(even + _SPREAD * math.sqrt(even)))


def _document(body: bytes, decimals: bool) -> dict[str, Any]:
    try:
        document: dict[str, Any] = parse_document(body, decimals=decimals)
    except ValueError:
        raise not_of_a_read() from None
    return document
