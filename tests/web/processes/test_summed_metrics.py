from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from forebay.lag import Lag
from forebay_web.histogram import ServedLag
from forebay_web.processes.group_metrics import counted, decoded, encoded, summed


def gauge(name: str, **figures: float) -> Metric:
    metric = GaugeMetricFamily(name, "Text.", labels=["host"])
    for host, figure in figures.items():
        metric.add_metric([host], figure)
    return metric


def reads(**figures: float) -> Metric:
    metric = CounterMetricFamily("forebay_router_reads", "Answers to reads.", labels=["status"])
    for status, figure in figures.items():
        metric.add_metric([status], figure)
    return metric


def figures(metric: Metric) -> dict[str, float]:
    return {next(iter(sample.labels.values())): sample.value for sample in metric.samples}


def test_counters_are_summed_by_their_labels():
    (metric,) = summed([[reads(ok=2, missing=1)], [], [reads(ok=3, failed=4)]])
    assert figures(metric) == {"ok": 5, "missing": 1, "failed": 4}
    assert {sample.name for sample in metric.samples} == {"forebay_router_reads_total"}


def test_gauges_are_summed_or_the_worst_is_taken():
    """A worker is live only if every process counts it as live."""
    names = ["forebay_router_worker_in_flight", "forebay_router_worker_live", "forebay_router_hedge_delay_seconds"]
    metrics = summed([[gauge(name, a=1, b=0) for name in names], [gauge(name, b=1, c=1) for name in names]])
    assert [figures(metric) for metric in metrics] == [
        {"a": 1, "b": 1, "c": 1},
        {"a": 1, "b": 0, "c": 1},
        {"a": 1, "b": 1, "c": 1},
    ]


def test_what_outlives_a_process_is_what_it_counted():
    served = ServedLag()
    served["counts"][Lag(0, 0, 0)] += 1
    kept = counted([reads(ok=1), gauge("forebay_router_in_flight", a=1), *collected(served)])
    assert [metric.type for metric in kept] == ["counter", "histogram", "histogram", "histogram"]


def collected(served: ServedLag) -> list[Metric]:
    return [metric for metric in served.collect("forebay_served") if metric is not None]


answers = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10**6), st.integers(0, 3)), max_size=30)


@given(answers)
def test_summed_histograms_equal_those_of_one_process(answers):
    """Several processes together report what one process that answered all reads would."""
    whole, parts = ServedLag(), [ServedLag() for _ in range(4)]
    for store, records, process in answers:
        for counting in (whole, parts[process]):
            counting[store][Lag(records, 1_000, None)] += 1
    reported = [decoded(encoded(collected(part))) for part in parts]
    assert [by_sample(metric) for metric in summed(reported)] == [by_sample(metric) for metric in collected(whole)]


def by_sample(metric: Metric) -> tuple[str, str, dict[tuple[str, str], float]]:
    figures = {(sample.name, str(sorted(sample.labels.items()))): sample.value for sample in metric.samples}
    return metric.name, metric.type, figures


def test_of_what_runs_and_its_limits_no_sum_is_made():
    def reported(start_s: float, resident_bytes: float) -> list[Metric]:
        figures = {
            "forebay_router_build_info": 1.0,
            "process_start_time_seconds": start_s,
            "process_max_fds": 1_024.0,
            "process_resident_memory_bytes": resident_bytes,
        }
        return [GaugeMetricFamily(name, "", value=value) for name, value in figures.items()]

    found = {metric.name: metric.samples[0].value for metric in summed([reported(5, 100), reported(3, 200)])}
    assert found == {
        "forebay_router_build_info": 1,
        "process_start_time_seconds": 3,
        "process_max_fds": 1_024,
        "process_resident_memory_bytes": 300,
    }
