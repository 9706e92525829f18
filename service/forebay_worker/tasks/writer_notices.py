"""What is wrong with those who write to a log, as its heartbeats tell it: notices of a replica."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.durations import time_text
from forebay.lag import Lag
from forebay.unproven import UnprovenRange
from forebay_web.health.survey import silent_writers
from forebay_worker.tasks.replica_view import ReplicaView


def writer_notices(view: ReplicaView, lag: Lag, now_epoch_ms: float) -> dict[str, str]:
    """What happened, and the remedy, by kind; ``lag`` is the replica's, as it can be proven."""
    found = {}
    silent = silent_writers(view.spec, view.beat_epoch_ms, lag, now_epoch_ms)
    if silent:
        found["writer-silent"] = _silent(view.spec.name, silent)
    unproven = [one for one in view.unproven if view.is_kept(one)]
    if unproven:
        found["entries-unproven"] = _UNPROVEN.format(" and ".join(map(_span, unproven)))
    return found


def _silent(store: str, silent: Mapping[str, int]) -> str:
    """Nobody else may notice: without a source, the age of what a tap writes is unknown."""
    named = ", ".join(f"{writer!r} since {time_text(since_ms)}" for writer, since_ms in silent.items())
    return (
        f"no heartbeat came from the writer {named}, so the store may be as old. Start its Spark query or tap "
        "(forebay spark follow) again. If its batches are to take longer, give the store a max_age_ms in the "
        f"topology. If it is gone for good, retire it: forebay changelog retire-writer {store} WRITER."
    )


_UNPROVEN = (
    "what ended {} may be missing, since its tap did not see it leave the state. Lists of that time say complete: "
    "false until retention_ms has passed it. For the tap's next absence, raise "
    "spark.sql.streaming.minBatchesToRetain of the query as docs/state-tap.md says."
)


def _span(unproven: UnprovenRange) -> str:
    until = f"until {time_text(unproven.to_ms)}"
    return until if unproven.from_ms is None else f"from {time_text(unproven.from_ms)} {until}"
