from forebay.lag import UNKNOWN_LAG, Lag
from forebay_router.metrics import ServedLag


def test_bucket_includes_its_bound():
    """An unknown lag is beyond all bounds."""
    served = ServedLag()
    for lag in (Lag(0, 5, None), Lag(10, 6, 1), Lag(11, 700_000, 1), UNKNOWN_LAG):
        served.observe("s", lag)
    records, seconds, ages = served.collect()
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
