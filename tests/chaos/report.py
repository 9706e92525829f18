"""``docs/reliability.md``: what runs of the judge showed, from their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.chaos.found import FOUND
from tests.chaos.promises import KINDS
from tests.chaos.result import NO_FAULT, FaultResult, Result, percentile
from tests.chaos.sensitivity import LOST

_INTRODUCTION = """\
# Reliability

Does a promise hold while processes die, files rot and networks hang? `scripts/chaos` starts real workers and
routers, writes a known history and reads it in every way. It breaks things by a seeded schedule, and judges
every answer. This page is written by it, from the results in `tests/chaos/results`.

## How it judges

Every item of a store is a fold of one log, and the judge is that log's only writer. It knows when the source
had each record, when the record was in the log, and when it could be read. There are three workers, with one
standby of each task, each worker behind a proxy, and two routers before them. Readers note what they sent, what
they received, and when, on the clock that all processes of the machine share. With `--worker-processes 2` each
worker has two processes, of which single ones are killed, too. With `--brokers 3` three brokers keep every topic,
else there is one. Each worker has a wall clock of its own and, where disks can be mounted, a disk.

One store has windows that last for seconds, one has values that live for seconds, and one has 60,000 keys:
workers without it copy it from another, and one of them has less memory than it takes. One store is kept in
memory, in as many partitions as `--partitions` says.

* A value must be the item's own, and of a committed record below the answer's position.
* Lag, age, `min_position` and what a session has seen each name an offset that an answer must have reached. An
  older value, a miss or a shorter list is a violation.
* What a follower has built from a store's stream must have every change, and every deletion, that the stream's ids
  and lags say was sent, also after it resumed elsewhere, and at the end all of the log. No item goes back.
* Now and then a log loses its newest records while no worker runs, and goes on with others at their offsets. No
  answer has one that was lost, unless its lag names a time before. No answer meets a position or session of the
  lost part, and streams are reset.
* A value that is older than its store's `ttl_ms`, and a window past its retention, must not be returned. One that
  is younger must not be missing. A value's age is that of its record, by the clock of who answers: once a worker's
  clock was ahead, misses of such a store are not judged.
* Now and then another partitioner writes keys to a partition that is not theirs, and deletes them again. On Kafka
  a topic also gets one partition more, until an empty one takes its place. Meanwhile no answer may state a lag, a
  miss or a list.
* Every figure of an answer must be within the bounds of its request.
* After each episode of faults, every partition has its replicas again within a stated time. At the end every
  replica's keys are compared with the log.
* While nothing is broken, or a single fault leaves a router and replicas, every read through that router with
  generous bounds is answered. While nothing is broken, every stream shows each change.

While somebody waits for a processor for 95% of three seconds, or the machine itself stands still, it is not judged
who answers, and how soon. What was answered always is.

The checker's own tests plant a violation of each kind in a history. A run fails if it reaches too few of the
situations that are listed below.
"""

_NOT_TESTED = """\
## What was not tested

* Loss and reordering of packets: this kernel has no netem. The proxies cut, delay and hold what passes between
  clients or routers and workers, and between workers and brokers. Brokers are not cut off from each other.
* The loss of records that an unclean election causes among several brokers, beside that of a single one, and the
  loss of most brokers: one of three is broken at a time. Logs that are cut while workers run. Records that are
  deleted from a log's beginning.
* Who answers while a broker's answers are delayed. Compaction follows the writer within seconds here, so replicas
  that read late cannot prove that a key is missing, and say so.
* Followers of a store whose values expire by the clock, and of windows past their retention.
* Copies of more than some megabytes.
* On Kafka, a worker's clock that is set back: [Clocks](capacity.md#clocks) says what it must be. Other processes'
  clocks are right.
* Faults of the machine itself: all processes ran on one, and its page cache survived every kill. A disk that turns
  read-only loses what was not synchronised.
* Kafka's group leader as a target of its own: nothing tells which member it is. Any worker may have been it.
* Lists so long that a router resumes them in the middle on another worker.
* Session stores, unknown partitioners, tokens and TLS. Resets of a log while workers run, and changes of a
  topology beside the order of its sub-topologies.
"""


_UNAVAILABILITY = f"""\
Unavailability is the time that a read of a key without bounds, through a router, waited for its answer. A read
that failed waits for the next answer from its partition, through either router. Reads that began within three
seconds after a fault count to it. `{NO_FAULT}` is the time between faults.
"""


def page(results: Sequence[Result]) -> str:
    """The page; results of one kind of log are added up."""
    return "\n".join([_INTRODUCTION, *map(_section, results), _meanings(), _found(), _NOT_TESTED])


def _found() -> str:
    rows = [f"| {found.fault} | {found.shown_by} | {found.commit} |" for found in FOUND]
    return "\n".join(["## What was found\n", "| fault | shown by | mended in |", "|---|---|---|", *rows, ""])


def _section(result: Result) -> str:
    return "\n".join([*_summary(result), *_fault_table(result), *_read_table(result), *_situations(result), ""])


def _summary(result: Result) -> Iterator[str]:
    name = {"sqlite": "SQLite", "kafka": "Kafka"}[result.log]
    reads, violations = sum(result.reads.values()), sum(result.violations.values())
    aborted = f", {result.aborted:,} of them aborted" if result.aborted else ""
    yield f"## On {name}: {violations:,} violations in {reads:,} reads\n"
    yield f"{result.records:,} records were written{aborted}. Each answer of a key was also made wrong and judged"
    yield f"again: {_noticed(result)}.\n"
    if LOST in result.noticed:
        yield f"An event that was taken from a store's stream was missed in {_share(result.noticed[LOST])}.\n"
    yield "| command | minutes | date | commit |"
    yield "|---|---:|---|---|"
    for run in result.runs:
        yield f"| `{run['command']}` | {run['minutes']:.1f} | {run['date']} | {run['commit']} |"
    yield ""


def _noticed(result: Result) -> str:
    return ", ".join(
        f"“{way}” instead was noticed in {_share(counts)}" for way, counts in result.noticed.items() if way != LOST
    )


def _share(counts: Sequence[int]) -> str:
    noticed, made = counts
    return f"{noticed / max(made, 1):.1%}"


def _fault_table(result: Result) -> Iterator[str]:
    yield _UNAVAILABILITY
    yield "| fault | times | reads | refused (412) | failed | violations | unavailability p50 | p99 | longest |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for kind, fault in result.faults.items():
        counts = (fault.times, fault.reads, fault.refused, fault.failed, fault.violations)
        waits = " | ".join(f"{wait:,} ms" for wait in _unavailability(fault))
        yield f"| {kind} | {' | '.join(f'{count:,}' for count in counts)} | {waits} |"
    yield ""


def _unavailability(fault: FaultResult) -> tuple[int, int, int]:
    return tuple(percentile(fault.waits_ms, share) for share in (0.5, 0.99, 1.0))  # type: ignore[return-value]


def _read_table(result: Result) -> Iterator[str]:
    yield "| kind of read | how many |"
    yield "|---|---:|"
    for kind, count in sorted(result.reads.items()):
        yield f"| {_READS[kind]} | {count:,} |"
    yield ""


def _situations(result: Result) -> Iterator[str]:
    yield "Situations that the runs reached:\n"
    for name, is_reached in result.reached.items():
        yield f"* {name}" if is_reached else f"* not reached: {name}"


def _meanings() -> str:
    lines = [f"| {kind} | {meaning} |" for kind, meaning in KINDS.items()]
    return "\n".join(["## What counts as a violation\n", "| violation | meaning |", "|---|---|", *lines, ""])


_READS = {
    "key": "a key, by plain HTTP or in a session of the client",
    "batch": "a key of a batch",
    "entries": "a page of entries",
    "windows": "a page of windows, of a key or of all",
    "versions": "a page of a key's versions",
    "change": "an event of a stream of a key's changes",
    "store-change": "an event of a stream of a store's changes",
    "sweep": "a key of a replica, compared with the log at the end",
}
