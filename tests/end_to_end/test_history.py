"""What routers remember of their stores' reads, whichever of their processes answered them."""

import httpx

from tests.support.cluster import Cluster, wait_until


def test_reads_and_refusals_of_all_processes_are_in_the_history(cluster: Cluster) -> None:
    cluster.put("counts", {b"k": b"1"})
    cluster.start_worker()
    router = cluster.start_router("--processes", "2")
    cluster.wait_settled(router, replicas=1)
    store = f"http://{router}/v1/stores/counts"
    # Each on a connection of its own, which the kernel gives to either process.
    for _ in range(20):
        assert httpx.get(f"{store}/keys/k").status_code == 200
        assert httpx.get(f"{store}/keys/nobody").status_code == 404
        assert httpx.get(f"{store}/keys/k?require_active=true&max_age_ms=0").status_code == 412
    body = {"keys": ["k", "nobody"]}
    assert httpx.post(f"{store}/batch-get?max_age_ms=0", json=body).status_code == 200

    def counted() -> bool:
        document = cluster.get(router, "/v1/stores/counts/history")
        samples = document["samples"]
        refused = sum(sample["problems"].get("lag-exceeds-tolerance", 0) for sample in samples)
        timed = all(sample["p50_ms"] > 0 for sample in samples if sample["reads"])
        answers = sum(document["served"]["time_lag_ms"]["counts"])
        return (sum(sample["reads"] for sample in samples), refused, answers, timed) == (62, 22, 40, True)

    wait_until(counted, "a history of all reads")
    seconds: list[int] = []

    def has_two_seconds() -> bool:
        """Either process may answer, and one is behind the other by a sample."""
        samples = cluster.get(router, "/v1/stores/counts/history")["samples"]
        seconds[:] = [sample["at_ms"] for sample in samples]
        return len(seconds) > 1

    wait_until(has_two_seconds, "the history of two seconds")
    metrics = httpx.get(f"http://{router}/metrics").text
    assert 'forebay_router_problems_total{problem="lag-exceeds-tolerance",store="counts"} 22.0' in metrics
    assert "unknown-key" not in metrics
    before_last = seconds[-2]
    later: list[dict[str, int]] = []

    def has_later() -> bool:
        later[:] = cluster.get(router, f"/v1/stores/counts/history?after_ms={before_last}")["samples"]
        return bool(later)

    wait_until(has_later, "what came later")
    assert all(sample["at_ms"] > before_last for sample in later)
