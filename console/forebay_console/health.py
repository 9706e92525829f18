"""``GET /v1/health``: what is served, within what age, by how many workers, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from forebay.clock import duration, epoch_ms
from forebay.lag import Lag, worst_lag
from forebay_console.answer_schemas import HealthAnswer, RestoreUnderWay, StoreHealth, WorkerCounts
from forebay_web.health.findings import Finding
from forebay_web.health.survey import Affected, StoreSurvey, Surveys


def health_answer(
    tier: Literal["router", "worker"],
    application_id: str | None,
    state: str,
    surveys: Surveys,
    findings: Sequence[Finding],
) -> HealthAnswer:
    """The answer of one process."""
    return HealthAnswer(
        tier=tier,
        application_id=application_id,
        state=state,
        now_ms=int(epoch_ms()),
        surveyed_ms=surveys.at_epoch_ms or None,
        generation=surveys.generation,
        summary=summary(tier, application_id, surveys),
        workers=WorkerCounts(known=len(surveys.workers), live=sum(surveys.workers.values())),
        findings=findings,
        stores=[_store_health(survey) for survey in surveys.stores.values()],
    )


def summary(tier: str, application_id: str | None, surveys: Surveys) -> str:
    """What is served, within what age, by how many workers, in one sentence."""
    if not surveys.stores:
        return "No store is known yet."
    stores, partitions = len(surveys.stores), sum(survey.partitions for survey in surveys.stores.values())
    lags = [survey.lag for survey in surveys.stores.values() if survey.partitions]
    live = sum(surveys.workers.values())
    by = "by this worker" if tier == "worker" else f"by {_count(live, 'worker')}"
    what = f"{_count(stores, 'store')} of {application_id!r} with {_count(partitions, 'partition')}"
    served = "are" if stores != 1 else "is"
    return f"{what} {served} served {by}, {_within(lags)}."


def _within(lags: Sequence[Lag]) -> str:
    """How far behind, of an unknown age as far as it is known."""
    ages_ms = [lag.age_ms for lag in lags if lag.age_ms is not None]
    if len(ages_ms) == len(lags) > 0:
        return f"at most {duration(max(ages_ms))} behind the source"
    time_lag_ms = worst_lag(list(lags)).time_lag_ms
    log = "an unknown time" if time_lag_ms is None else f"at most {duration(time_lag_ms)}"
    if not ages_ms:
        return f"{log} behind the log; the age is unknown"
    where = f"in the {_count(len(ages_ms), 'store')} where it is known"
    return f"{log} behind the log; the age is at most {duration(max(ages_ms))} {where}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _store_health(survey: StoreSurvey) -> StoreHealth:
    return StoreHealth(
        *survey.lag,
        store=survey.store,
        partitions=survey.partitions,
        conditions={str(condition): count for condition, count in sorted(survey.conditions.items())},
        restores=[_restore(restore) for restore in survey.restores],
    )


def _restore(restore: Affected) -> RestoreUnderWay:
    partition, replica = restore
    return RestoreUnderWay(partition, replica.host, replica.restored_records, replica.restore_seconds_left)
