from typing import cast

from forebay.hot_path import HotPathProtocol, HotRequest, RequestForm
from forebay.metadata import StreamsMetadataState
from forebay.settings import RouterSettings, load_settings
from forebay.topology import StoreSpec
from forebay_router.hot_path import RouterHotPath
from forebay_router.metrics import RouterMetrics
from forebay_router.reads import choices
from forebay_router.router import Router

PROTOCOL = cast(HotPathProtocol, None)
"""Nothing here gets as far as to touch it."""


def test_clients_that_ask_in_any_number_of_ways_take_a_bounded_memory(monkeypatch):
    monkeypatch.setattr(choices, "_MOST_CHOICES", 100)
    router = Router(RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, {})))
    spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 64)
    router.cluster.metadata = StreamsMetadataState({"s": spec})
    path = RouterHotPath(router, RouterMetrics(router))
    most = 0
    for bound in range(50):
        form = RequestForm("s", b"max_record_lag=%d" % bound, b"", b"")
        for key in range(100):
            # Nobody holds anything, so the route is to answer.
            assert path.key(HotRequest(form, b"k%d" % key, 0), PROTOCOL) is None
            most = max(most, sum(map(len, path._choices._choices.values())))
    assert 50 <= most <= 100
