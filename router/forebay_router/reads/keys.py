"""Reads of one key, even if the store's partitioner is unknown: then every partition is asked.

A key is in one partition, so the first that has it answers. A miss is reported only once every partition has
reported it within the bounds. A key that carries the id of a schema may be in several, in a form for each: the
newest value counts, once every partition has answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

from forebay.clock import boot_ms
from forebay.codecs.keys import from_segment
from forebay.errors import RecordTooOld, UnknownKey
from forebay.lag import UNKNOWN_LAG, UNLIMITED, Lag, worst_lag
from forebay.store_spec import StoreSpec
from forebay.wire.answer_aging import aged, answer_by_now, bounds_exceeded, time_reserved_for_retry_ms
from forebay.wire.answers import FINAL, WITH_LAG, HttpAnswer, ReplicaInfo, lag_head, problem_answer
from forebay.wire.parameters import ReadParameters
from forebay.wire.scan_pages import joined_position
from forebay_router.reads.refusals import RETRYABLE_SOON
from forebay_router.reads.replica_read import ask
from forebay_router.reads.replica_request import (
    NamedKey,
    ReplicaRequest,
    TimedAnswer,
    answered_by_now,
)
from forebay_router.router import Router
from forebay_web.limits import Peer

_GRAVEST_FIRST = (503, 504, 429, 412)
_TOO_OLD = b'{"type":"urn:forebay:problem:%b"' % RecordTooOld.name.encode()
_AFTER_VALUE = b',"timestamp_ms":'


async def read_key(
    router: Router,
    store: str,
    segment: bytes,
    path: bytes,
    query: bytes,
    parameters: ReadParameters,
    peer: Peer,
) -> HttpAnswer:
    """Answer a peer's read of one key from the replica that best meets its tolerance; raises ``Problem``.

    ``path`` and ``query`` are the request's own, as received.
    """
    spec = router.spec(store)
    plain = from_segment(spec.key_codec, segment)
    request = ReplicaRequest(
        spec,
        0 if spec.stream_partitioner is None else spec.partition_of(plain),
        path + b"?" + query if query else path,
        dedicated_connection=parameters.wait_ms > 0,
        named=NamedKey.of(parameters.written(spec), plain),
    )
    with router.admitted(peer, parameters):
        deadline = router.deadline(parameters)
        if spec.stream_partitioner is None:
            return await _search(router, request, parameters, deadline)
        timed = await ask(router, request, parameters, deadline)
        return answered_by_now(timed, spec.name, router.tolerance(spec, parameters))


async def _search(
    router: Router, request: ReplicaRequest, parameters: ReadParameters, deadline_boot_ms: float
) -> HttpAnswer:
    """Ask every partition at once; once more if a miss has left its bounds while waiting for the last one."""
    spec = request.spec
    tolerance = router.tolerance(spec, parameters)
    until = deadline_boot_ms - time_reserved_for_retry_ms(tolerance, deadline_boot_ms - boot_ms())
    lag = UNKNOWN_LAG
    rounds = [(until, False), (deadline_boot_ms, False)]
    if spec.store_kind.has_forms and parameters.wait_ms:
        # A form that is too old would be waited for, although a newer one is there.
        rounds.insert(0, (until, True))
    for until_boot_ms, no_wait in rounds:
        answer = await _search_once(router, replace(request, no_wait=no_wait), parameters, until_boot_ms)
        if no_wait and answer.status in RETRYABLE_SOON:
            continue
        lag_at_answer = aged(answer.body, 0)[1] if answer.status in WITH_LAG else None
        if lag_at_answer is None or tolerance.met_by(lag_at_answer):
            return answer
        lag, parameters = lag_at_answer, parameters.of_a_reread
    return bounds_exceeded(spec.name, tolerance, lag)


async def _search_once(
    router: Router, request: ReplicaRequest, parameters: ReadParameters, deadline_boot_ms: float
) -> HttpAnswer:
    spec = request.spec
    requests = [replace(request, partition=partition) for partition in range(spec.partitions)]
    tasks = [asyncio.create_task(ask(router, request, parameters, deadline_boot_ms)) for request in requests]
    timed_answers: list[TimedAnswer] = []
    try:
        for task in asyncio.as_completed(tasks):
            timed_answers.append(await task)
            if decides(spec, timed_answers[-1].answer):
                break
    finally:
        for one in tasks:
            one.cancel()
    answer, now = verdict(spec, timed_answers), boot_ms()
    as_of_boot_ms = next((each.as_of_boot_ms for each in timed_answers if each.answer is answer), now)
    return answer_by_now(answer, now - as_of_boot_ms, UNLIMITED, spec.name)


def decides(spec: StoreSpec, answer: HttpAnswer) -> bool:
    """Whether one partition's answer settles the read: it has the key, had it, or the request is at fault."""
    if answer.status == 200 and spec.store_kind.has_forms:
        return False
    return answer.status in FINAL and answer.status != UnknownKey.status


def verdict(spec: StoreSpec, timed_answers: Sequence[TimedAnswer]) -> HttpAnswer:
    """The partitions' combined answer: one that settles it, else the gravest refusal, else a miss."""
    answers = [each.answer for each in timed_answers]
    for answer in answers:
        if decides(spec, answer):
            return answer
    has_value = any(answer.status == 200 for answer in answers)
    for status in _GRAVEST_FIRST:
        for answer in answers:
            # Of several forms of a key, older ones than the newest are of no interest.
            if answer.status == status and not (has_value and answer.body.startswith(_TOO_OLD)):
                return answer
    if has_value:
        return _newest_form(timed_answers)
    refused = next((answer for answer in answers if answer.status != UnknownKey.status), None)
    return refused or _miss_of_all(spec, timed_answers)


def _newest_form(timed_answers: Sequence[TimedAnswer]) -> HttpAnswer:
    """The newest of a key's forms, with the worst lag of all partitions, and one combined position.

    Why theirs: each may have a newer one, or will delete this.
    """
    now, sources, forms = boot_ms(), [], []
    for answer, as_of_boot_ms, *_ in timed_answers:
        # A value may be anything, of any size; what follows it is the worker's.
        at = answer.body.rfind(_AFTER_VALUE) if answer.status == 200 else 0
        source = json.loads(b"{" + answer.body[at + 1 :])
        if not source.keys() >= {"position", "lag"}:
            # A refusal of an older form.
            continue
        source["lag"] = Lag(**source["lag"]).aged(now - as_of_boot_ms).document()
        sources.append(source)
        if at:
            forms.append((source["timestamp_ms"], source["partition"], at, source, answer))
    *_, at, newest, answer = max(forms, key=lambda form: form[:2])
    lag, position = worst_lag([Lag(**source["lag"]) for source in sources]), joined_position(sources)
    before, stated = aged(answer.body, 0)[1], newest["position"]
    assert before is not None
    members = {**newest, "position": position or stated, "lag": lag.document()}
    tail = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    head = answer.head.replace(lag_head(before), lag_head(lag), 1)
    if position is not None:
        head = head.replace(_position_line(stated), _position_line(position), 1)
    return HttpAnswer(200, head, b"%b,%b" % (answer.body[:at], tail[1:]))


def _position_line(position: str) -> bytes:
    return b"forebay-position: %b\r\n" % position.encode()


def _miss_of_all(spec: StoreSpec, timed_answers: Sequence[TimedAnswer]) -> HttpAnswer:
    """No partition has the key: the worst lag of all, and one combined position."""
    misses, now = [], boot_ms()
    for answer, as_of_boot_ms, *_ in timed_answers:
        miss = json.loads(answer.body)
        misses.append({**miss, "lag": Lag(**miss["lag"]).aged(now - as_of_boot_ms).document()})
    misses.sort(key=lambda miss: int(miss["partition"]))
    sources = [{name: miss[name] for name in ReplicaInfo._fields} for miss in misses]
    lag = worst_lag([Lag(**source["lag"]) for source in sources])
    position = joined_position(sources)
    problem = UnknownKey(
        misses[0]["detail"],
        store=spec.name,
        key=misses[0]["key"],
        position=position,
        partitions=sources,
        lag=lag.document(),
    )
    token = b"" if position is None else _position_line(position)
    return problem_answer(problem, lines=lag_head(lag) + token)
