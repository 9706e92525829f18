"""What is wrong now and what to do, as found in a survey. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct

from forebay.clock import duration
from forebay.wire.answer_schemas.members import Natural
from forebay_web.health.survey import Condition, StoreSurvey, Surveys

Severity: TypeAlias = Literal["error", "warning"]


class Finding(Struct, frozen=True):
    """Something that is wrong: its kind, how grave it is, a sentence, and the remedy."""

    kind: str
    severity: Severity
    detail: str
    remedy: str
    store: str | None = None
    partitions: Annotated[tuple[Natural, ...], Meta(description="Those concerned, or the first of them.")] = ()

    @classmethod
    def of_message(
        cls,
        kind: str,
        severity: Severity,
        message: str,
        otherwise: str,
        store: str | None = None,
        partitions: tuple[int, ...] = (),
    ) -> Finding:
        """The finding of an error's message: its first sentence says what happened, the others are the remedy.

        ``otherwise`` is the remedy if the message has none.
        """
        what, stop, rest = message.partition(". ")
        return cls(kind, severity, what + stop.strip(), rest or otherwise, store, partitions)


class _Rule(NamedTuple):
    kind: str
    severity: Severity
    concerned: Callable[[StoreSurvey], tuple[int, Sequence[int]]]
    """How many partitions of a store, and the first of them."""
    effect: str
    remedy: str


def _in(condition: Condition) -> Callable[[StoreSurvey], tuple[int, Sequence[int]]]:
    return lambda survey: (survey.conditions[condition], survey.named.get(condition, ()))


_STANDBYS_ONLY = _Rule(
    "partitions-standby",
    "warning",
    _in(Condition.STANDBY),
    "served by standbys only, so reads with require_active are refused",
    "The group assigns an active within session_timeout_ms. If none appears, see the workers' logs.",
)
_RULES = (
    _Rule(
        "partitions-unheld",
        "error",
        _in(Condition.UNHELD),
        "held by no worker that answers, so reads of their keys fail",
        "Start the workers that are missing, or wait until the group assigns the partitions to the others.",
    ),
    _STANDBYS_ONLY,
    _Rule(
        "partitions-restoring",
        "warning",
        _in(Condition.RESTORING),
        "being restored, so reads with bounds may be refused",
        "Wait until the restore is done. Standbys (num_standby_replicas) avoid it.",
    ),
    _Rule(
        "partitions-lagging",
        "warning",
        _in(Condition.LAGGING),
        "further behind the log than acceptable_recovery_lag",
        "If it does not shrink, the workers need more CPU or disk, or there must be more workers.",
    ),
    _Rule(
        "partitions-lag-unknown",
        "warning",
        _in(Condition.LAG_UNKNOWN),
        "of unknown time lag, so reads with bounds are refused",
        "If it lasts, the workers cannot read the end of the log. See their logs.",
    ),
    _Rule(
        "partitions-under-replicated",
        "warning",
        lambda survey: (survey.under_replicated, survey.under_replicated_named),
        "held by fewer workers than num_standby_replicas asks for",
        "Start the workers that are missing. Their places go to others after standby_rebuild_delay_ms.",
    ),
)
_SEE_TROUBLESHOOTING = "docs/troubleshooting.md describes the remedy for each cause."
_MINOR = {"topic-keeps-expired", "entries-unproven", "log-without-epochs", "transaction-open"}
_MAX_SILENT = 8
_MAX_NAMED = 5


def findings_of(surveys: Surveys, *, knows_all_replicas: bool) -> Iterator[Finding]:
    """The findings of a survey, by store; without ``knows_all_replicas`` standbys alone are nothing wrong."""
    silent = sorted(host for host, live in surveys.workers.items() if not live)
    for host in silent[:_MAX_SILENT]:
        yield Finding(
            "worker-silent",
            "error",
            f"The worker {host} does not answer.",
            "Start it again. If it was removed for good, the finding ends within five minutes.",
        )
    for survey in surveys.stores.values():
        yield from _failures(survey)
        yield from _notices(survey)
        yield from _source_behind(survey)
    for rule in _RULES:
        concerned = [(survey, *rule.concerned(survey)) for survey in surveys.stores.values()]
        concerned = [one for one in concerned if one[1]]
        if concerned and (knows_all_replicas or rule is not _STANDBYS_ONLY):
            yield _finding(concerned, rule)


def _failures(survey: StoreSurvey) -> Iterator[Finding]:
    for partition, replica in survey.failures:
        message = f"{survey.store}-{partition} on {replica.host} cannot apply records: {replica.failure}"
        yield Finding.of_message(
            "replica-failed", "error", message, _SEE_TROUBLESHOOTING, survey.store, (partition,)
        )


def _notices(survey: StoreSurvey) -> Iterator[Finding]:
    for kind, (partition, replica) in sorted(survey.notices.items()):
        message = f"{survey.store}-{partition} on {replica.host}: {replica.notices[kind]}"
        severity: Severity = "warning" if kind in _MINOR else "error"
        yield Finding.of_message(kind, severity, message, _SEE_TROUBLESHOOTING, survey.store, (partition,))


def _source_behind(survey: StoreSurvey) -> Iterator[Finding]:
    """The workers follow the log, but nothing new comes into it."""
    if survey.acceptable_age_ms < survey.source_age_ms < math.inf:
        age = duration(survey.source_age_ms)
        yield Finding(
            "source-behind",
            "error",
            f"{survey.store}: its log has nothing of the last {age} from its source, and is read to its end.",
            "See whether the Spark query runs, and how far behind its source it is. If its batches are to take "
            "longer, state the store's max_age_ms in the topology. If one of several writers is gone for good, "
            "retire it with forebay changelog retire-writer.",
            survey.store,
        )


def _finding(concerned: list[tuple[StoreSurvey, int, Sequence[int]]], rule: _Rule) -> Finding:
    """One finding for all stores: a lost worker concerns many at once."""
    count = sum(number for _, number, _ in concerned)
    verb = "is" if count == 1 else "are"
    if len(concerned) > 1:
        names = ", ".join(survey.store for survey, _, _ in concerned[:_MAX_NAMED])
        more = len(concerned) - _MAX_NAMED
        which = f"{names} and {more} other stores" if more > 0 else names
        return Finding(rule.kind, rule.severity, f"{which}: {count} partitions {verb} {rule.effect}.", rule.remedy)
    first, _, partitions = concerned[0]
    detail = f"{first.store}: {count} of {first.partitions} partitions {verb} {rule.effect}."
    return Finding(rule.kind, rule.severity, detail, rule.remedy, first.store, tuple(partitions))


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors before warnings, otherwise as they are."""
    return sorted(findings, key=lambda finding: finding.severity != "error")
