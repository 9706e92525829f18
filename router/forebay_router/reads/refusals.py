"""Attempts at a read: the workers asked, and the problem that sums up why none answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import (
    DeadlineExceeded,
    LagExceedsTolerance,
    NoReplica,
    Overloaded,
    PartitionerMismatch,
    UnknownStore,
)
from forebay.lag import Lag
from forebay.routing.failover_policy import AttemptOutcome
from forebay.routing.scattered_list import attempts_at_all, unread
from forebay.streams_metadata import HostInfo
from forebay.wire.answers import FINAL, HttpAnswer, is_problem, problem_answer, problem_name

RETRYABLE_SOON = frozenset({412, 503})
"""Refusals of what a replica may be able to answer soon."""


def outcome_of(answer: HttpAnswer) -> AttemptOutcome:
    """What a worker's answer means for its read."""
    if is_final(answer):
        return AttemptOutcome.FINAL
    if answer.status == Overloaded.status:
        return AttemptOutcome.OVERLOADED
    return AttemptOutcome.NOT_YET if answer.status in RETRYABLE_SOON else AttemptOutcome.REFUSED


def is_final(answer: HttpAnswer) -> bool:
    """Whether a worker's answer goes to the client, without asking another worker.

    A worker that does not know a store in the router's map is behind in a deployment.
    """
    return answer.status in FINAL and not (answer.status == 404 and is_problem(answer, UnknownStore))


_MISPLACED = f"urn:forebay:problem:{PartitionerMismatch.name}"


@dataclass(frozen=True)
class Attempt:
    """One worker asked, and the outcome."""

    host: HostInfo
    outcome: str
    answer: HttpAnswer | None = None

    def document(self) -> dict[str, Any]:
        """The attempt as a member of a problem's ``attempts``."""
        document: dict[str, Any] = {"host": str(self.host), "outcome": self.outcome}
        if self.answer is not None:
            document["status"] = self.answer.status
            document["type"] = document_of(self.answer.body).get("type")
        return document


def attempts_head(attempts: Sequence[Attempt]) -> bytes:
    """The header line of an answer that others were asked for too; nothing if none was."""
    texts = [_text(attempt) for attempt in attempts]
    return f"forebay-attempts: {', '.join(texts)}\r\n".encode("ascii", "replace") if texts else b""


def _text(attempt: Attempt) -> str:
    if attempt.answer is None:
        return f"{attempt.host} {attempt.outcome}"
    return f"{attempt.host} {attempt.outcome} {attempt.answer.status} {problem_name(attempt.answer)}".rstrip()


def refusal(store: str, partition: int, attempts: Sequence[Attempt]) -> HttpAnswer:
    """The answer if no attempt had one: the refusal shared by all, else no replica.

    The shared refusal is the 412 of the replica least behind, or that keys are not where the partitioner puts
    them. Problems of any other type that they share are quoted.
    """
    documents = [attempt.document() for attempt in attempts]
    answers = [attempt.answer for attempt in attempts if attempt.answer is not None]
    problems = [document_of(answer.body) for answer in answers]
    if answers and all(answer.status == 412 for answer in answers):
        best = min(answers, key=lambda answer: _lag_order(document_of(answer.body)))
        return _passed_on(best, documents, b"retry-after: 1\r\n")
    if answers and all(problem.get("type") == _MISPLACED for problem in problems):
        return _passed_on(answers[0], documents)
    return problem_answer(
        NoReplica(
            f"No replica of {store!r} partition {partition} could answer.{_quoted(problems)}",
            retry_after_s=1,
            store=store,
            partition=partition,
            attempts=documents,
        )
    )


def nothing_read(store: str, refused: Sequence[HttpAnswer]) -> HttpAnswer:
    """The answer of a list of which no partition could be read: the refusal shared by all, else no replica.

    Its attempts are those at all partitions.
    """
    problems = [document_of(answer.body) for answer in refused]
    statuses = {answer.status for answer in refused}
    if statuses == {LagExceedsTolerance.status}:
        return _passed_on(refused[0], attempts_at_all(problems))
    return problem_answer(unread(store, statuses, problems))


def overload(store: str, partition: int, attempts: Sequence[Attempt]) -> HttpAnswer:
    """The answer if a healthy replica was not asked because it is at its request limit."""
    return problem_answer(
        Overloaded(
            f"Every replica of {store!r} partition {partition} that could answer is at its request limit.",
            retry_after_s=1,
            store=store,
            partition=partition,
            attempts=[attempt.document() for attempt in attempts],
        )
    )


def late(store: str, partition: int, attempts: Sequence[Attempt]) -> HttpAnswer:
    """The answer if the deadline passed before a replica answered."""
    return problem_answer(
        DeadlineExceeded(
            f"No replica of {store!r} partition {partition} answered in time.",
            store=store,
            partition=partition,
            attempts=[attempt.document() for attempt in attempts],
        )
    )


def _passed_on(answer: HttpAnswer, attempts: list[dict[str, Any]], head: bytes = b"") -> HttpAnswer:
    document = {**document_of(answer.body), "attempts": attempts}
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return HttpAnswer(answer.status, answer.head + head, body)


def _quoted(problems: Sequence[Mapping[str, Any]]) -> str:
    """What the workers say, each text once, as the next sentence; nothing unless all their problems are alike."""
    if len({str(problem.get("type")) for problem in problems}) != 1:
        return ""
    details = dict.fromkeys(str(problem["detail"]) for problem in problems if problem.get("detail"))
    return f" Workers say: {' '.join(details)}" if details else ""


def document_of(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is, an empty one if it is none."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _lag_order(problem: dict[str, Any]) -> tuple[float, ...]:
    lag = problem.get("lag", {})
    return tuple(float("inf") if lag.get(figure) is None else lag[figure] for figure in Lag._fields)
