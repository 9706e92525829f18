from collections.abc import Callable
from dataclasses import dataclass, field, replace

from msgspec import to_builtins

from forebay.lag import UNKNOWN_LAG, Lag
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import StreamsMetadataState
from forebay_console.health import health_answer, summary
from forebay_console.timeline import Timeline
from forebay_web.health.findings import Finding, findings_of, gravest_first
from forebay_web.health.survey import ReplicaState, StoreSurvey, Survey, Surveys

LAG = Lag(0, 5, 50)
A, B = ReplicaState("a:1", "active", LAG), ReplicaState("b:1", "standby", Lag(2, 20, 200))


@dataclass
class Known:
    """A process that knows the replicas of one store of some partitions."""

    replicas: Callable[[int], list[ReplicaState]]
    partitions: int = 3
    knows_all_replicas: bool = True
    expected_replicas: int | None = None
    max_age_ms: int | None = None
    workers: dict[str, bool] = field(default_factory=lambda: {"a:1": True, "b:1": True})

    def __post_init__(self) -> None:
        spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", self.partitions)
        spec = replace(spec, max_age_ms=self.max_age_ms)
        self.metadata = StreamsMetadataState({"s": spec})

    def replica_states(self, spec: StoreSpec, partition: int) -> list[ReplicaState]:
        return self.replicas(partition)

    def live_workers(self) -> dict[str, bool]:
        return dict(self.workers)

    def own_findings(self) -> list[Finding]:
        return []


def surveyed(known: Known) -> tuple[Survey, Timeline]:
    timeline = Timeline()
    survey = Survey(known, timeline.on_survey)
    again(survey)
    return survey, timeline


def again(survey: Survey) -> Surveys:
    for _ in survey.steps():
        pass
    return survey.newest


def kinds(timeline: Timeline) -> list[tuple[str, list[int]]]:
    return [(event.kind, list(event.partitions)) for event in timeline.events()]


def test_partitions_are_surveyed_in_slices():
    survey = Survey(Known(lambda _: [A], partitions=250), lambda before, now: None)
    assert list(survey.steps()) == [99, 199]
    assert survey.newest.stores["s"].conditions == {"served": 250}


def test_store_lag_is_the_worst_partitions():
    """The lag of standbys beside a better replica does not count."""
    worst = A._replace(lag=Lag(1, 7, 70))
    survey, _ = surveyed(Known(lambda n: [worst if n == 1 else A, B]))
    assert survey.newest.stores["s"].lag == Lag(1, 7, 70)
    survey, _ = surveyed(Known(lambda n: [A._replace(lag=UNKNOWN_LAG) if n == 2 else A]))
    assert survey.newest.stores["s"].lag == UNKNOWN_LAG


def test_worker_survey_counts_only_held_partitions():
    """A router's survey counts the others as held by no worker."""
    own = Known(lambda n: [B] if n == 1 else [], knows_all_replicas=False)
    survey, _ = surveyed(own)
    assert survey.newest.stores["s"].conditions == {"standby": 1}
    assert list(findings_of(survey.newest, knows_all_replicas=False)) == []
    survey, _ = surveyed(Known(own.replicas))
    assert survey.newest.stores["s"].conditions == {"standby": 1, "unheld": 2}


def test_findings_are_sorted_by_severity():
    """Each finding names its partitions and the remedy."""

    def replicas(partition: int) -> list[ReplicaState]:
        return {0: [A._replace(live=False)], 1: [B], 2: [A._replace(failure="no codec. Install it.")]}[partition]

    survey, _ = surveyed(Known(replicas, workers={"a:1": False, "b:1": True}))
    found = gravest_first(findings_of(survey.newest, knows_all_replicas=True))
    assert [(finding.kind, finding.severity, finding.partitions) for finding in found] == [
        ("worker-silent", "error", ()),
        ("replica-failed", "error", (2,)),
        ("partitions-unheld", "error", (0,)),
        ("partitions-standby", "warning", (1,)),
    ]
    assert (found[1].detail, found[1].remedy) == ("s-2 on a:1 cannot apply records: no codec.", "Install it.")
    assert found[2].detail.startswith("s: 1 of 3 partitions is held by no worker")
    assert all(finding.remedy for finding in found)


def test_fewer_replicas_than_intended_are_a_finding():
    """Those of a partition without any are another."""

    def replicas(partition: int) -> list[ReplicaState]:
        return {0: [A, B], 1: [A], 2: [A, B._replace(live=False)], 3: []}[partition]

    known = Known(replicas, partitions=4, expected_replicas=2)
    survey, _ = surveyed(known)
    found = {finding.kind: finding for finding in findings_of(survey.newest, knows_all_replicas=True)}
    assert found.keys() == {"partitions-unheld", "partitions-under-replicated"}
    short = found["partitions-under-replicated"]
    assert (short.severity, short.partitions) == ("warning", (1, 2))
    assert short.detail == "s: 2 of 4 partitions are held by fewer workers than num_standby_replicas asks for."
    known.expected_replicas = None
    assert "partitions-under-replicated" not in {
        finding.kind for finding in findings_of(again(survey), knows_all_replicas=True)
    }


def test_source_that_is_behind_or_stopped_is_a_finding():
    """Not while a batch may take so long, nor by replicas that do not follow the log."""

    def findings(*lags: Lag, max_age_ms: int | None = None) -> list[str]:
        known = Known(
            lambda n: [A._replace(lag=lags[n])],
            partitions=len(lags),
            knows_all_replicas=False,
            max_age_ms=max_age_ms,
        )
        return [one.detail for one in findings_of(surveyed(known)[0].newest, knows_all_replicas=False)]

    old = Lag(0, 50, 240_000)
    assert findings(old, old) == [
        "s: its log has nothing of the last 4 min from its source, and is read to its end."
    ]
    assert findings(old, Lag(0, 50, 1_000)) == []
    assert findings(old, old._replace(age_ms=119_000)) == []
    assert findings(old, max_age_ms=3_600_000) == []
    assert findings(Lag(900, 60_000, 240_000)) == []
    assert findings(Lag(0, 50, None)) == []


def test_a_lost_worker_is_one_finding_for_all_its_stores():
    survey, _ = surveyed(Known(lambda _: [B]))
    one = survey.newest.stores["s"]
    found = findings_of(
        Surveys(1, 1, {f"s{n}": replace(one, store=f"s{n}") for n in range(7)}), knows_all_replicas=True
    )
    assert [finding.detail for finding in found] == [
        "s0, s1, s2, s3, s4 and 2 other stores: 21 partitions are served by standbys only, so reads with "
        "require_active are refused."
    ]


def test_failover_is_one_event_for_its_partitions():
    """The lost active and the promotion are one event each for all partitions that moved alike."""
    known = Known(lambda _: [A, B])
    survey, timeline = surveyed(known)
    assert kinds(timeline) == []
    known.replicas, known.workers["a:1"] = lambda _: [A._replace(live=False), B], False
    again(survey)
    assert kinds(timeline) == [("worker-down", []), ("active-lost", [0, 1, 2])]
    known.replicas = lambda _: [B._replace(role="active")]
    again(survey)
    again(survey)
    assert kinds(timeline)[2:] == [("promotion", [0, 1, 2])]
    assert timeline.events()[-1].host == "b:1"


def test_a_restore_is_an_event_when_it_begins_and_when_it_ends():
    known = Known(lambda _: [A])
    survey, timeline = surveyed(known)
    restoring = ReplicaState("b:1", "standby", restored_records=7, restore_seconds_left=40)
    known.replicas = lambda n: [A, restoring] if n == 1 else [A]
    again(survey)
    health = to_builtins(health_answer("router", "app", "ready", survey.newest, []))
    [restore] = health["stores"][0]["restores"]
    assert restore == {"partition": 1, "host": "b:1", "restored_records": 7, "restore_seconds_left": 40}
    known.replicas = lambda _: [A]
    again(survey)
    assert kinds(timeline) == [("restore-begun", [1]), ("restore-ended", [1])]
    assert "about 40 s left" in timeline.events()[0].detail


def test_summary_states_stores_workers_and_age():
    survey, _ = surveyed(Known(lambda _: [A, B]))
    assert summary("router", "shop", survey.newest) == (
        "1 store of 'shop' with 3 partitions is served by 2 workers, at most 50 ms behind the source."
    )
    survey, _ = surveyed(Known(lambda _: [A._replace(lag=Lag(0, 1_500, None))]))
    assert summary("router", "shop", survey.newest).endswith("at most 1.5 s behind the log; the age is unknown.")
    survey, _ = surveyed(Known(lambda _: []))
    assert summary("router", "shop", survey.newest).endswith("an unknown time behind the log; the age is unknown.")
    stores = {"s": StoreSurvey("s", 1, lag=LAG), "other": StoreSurvey("other", 1, lag=Lag(0, 7, None))}
    assert summary("router", "shop", Surveys(1, 1, stores, {"a:1": True})) == (
        "2 stores of 'shop' with 2 partitions are served by 1 worker, at most 7 ms behind the log; "
        "the age is at most 50 ms in the 1 store where it is known."
    )
    assert summary("router", None, Surveys()) == "No store is known yet."
