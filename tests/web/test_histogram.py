from forebay.lag import UNKNOWN_LAG, Lag
from forebay_web.histogram import ServedLag


def test_lags_are_kept_until_there_are_some_hundred():
    """However many answers state each."""
    counts = ServedLag()["s"]
    for record_lag in range(1_000):
        counts[Lag(record_lag, 1, None)] += 2
        counts[Lag(0, 1, None)] += 1
        assert len(counts) <= 256
    records, times, ages = counts.histograms()
    assert (records.counts[0], sum(records.counts)) == (1_002, 3_000)
    assert records.total == 2 * sum(range(1_000))
    assert times.counts[0] == ages.counts[-1] == 3_000


def test_bucket_includes_its_bound():
    """An unknown lag is beyond all bounds."""
    served = ServedLag()
    for lag in (Lag(0, 5, None), Lag(10, 6, 1), Lag(11, 700_000, 1), UNKNOWN_LAG):
        served["s"][lag] += 1
    records, seconds, ages = filter(None, served.collect("forebay_served"))
    by_bound = {sample.labels["le"]: sample.value for sample in records.samples if "le" in sample.labels}
    assert (by_bound["0"], by_bound["10"], by_bound["100"], by_bound["1000000"], by_bound["+Inf"]) == (
        1,
        2,
        3,
        3,
        4,
    )
    by_bound = {sample.labels["le"]: sample.value for sample in seconds.samples if "le" in sample.labels}
    assert (by_bound["0.005"], by_bound["0.01"], by_bound["600"], by_bound["+Inf"]) == (1, 2, 2, 4)
    by_bound = {sample.labels["le"]: sample.value for sample in ages.samples if "le" in sample.labels}
    assert (by_bound["0.1"], by_bound["3600"], by_bound["+Inf"]) == (2, 2, 4)
    sums = [
        sample.value
        for family in (records, seconds, ages)
        for sample in family.samples
        if sample.name.endswith("_sum")
    ]
    assert sums == [21, 700.011, 0.002]
