"""Which worker a plain read asks first, while what is known of the workers changes."""

from forebay.clock import boot_ms
from forebay.lag import Lag
from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo, StreamsMetadataState
from forebay_router.cluster.worker_view import Report, WorkerView
from forebay_router.reads.candidate_cache import CandidateCache
from forebay_router.router import Router
from forebay_web.fast_path.recogniser import RequestTemplate

SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
FIRST, SECOND = HostInfo("a", 1), HostInfo("b", 1)


async def test_candidates_are_refreshed_after_25_ms():
    router = Router(RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, {})))
    router.cluster.metadata = StreamsMetadataState({"s": SPEC})
    for host in (FIRST, SECOND):
        router.cluster.workers[host] = WorkerView(host, live=True)

    def report(active: HostInfo) -> None:
        for host in (FIRST, SECOND):
            view, role = router.cluster.workers[host], "active" if host == active else "standby"
            view.replicas = {("s", 0): Report(role, Lag(0, 0, 0), boot_ms())}
            router.cluster._holds(view, set())

    choices = CandidateCache(router)
    read = choices.key_read(RequestTemplate("s", b"", b"", b"", b"h"))
    assert read is not None

    def chosen(at_ms: float) -> HostInfo:
        target = choices.choose(read, 0, at_ms)
        assert target is not None
        return target.worker.host

    report(FIRST)
    assert chosen(1_000) == FIRST
    report(SECOND)
    assert chosen(1_010) == FIRST
    assert chosen(1_030) == SECOND
    # One that is lost is left at once.
    router.cluster.on_unreachable(SECOND)
    assert chosen(1_031) == FIRST
    router.pool.close()
