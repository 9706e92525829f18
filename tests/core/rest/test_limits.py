"""One limit shared by peers: whatever one holds, the next is served."""

import pytest

from forebay.errors import Overloaded
from forebay.rest.forwarding import TrustedProxies
from forebay.rest.limits import Limit, Peer, Peers
from forebay.rest.ticket_parameter import TICKET_HOLDER


def test_one_peer_leaves_an_eighth_to_others():
    limit, greedy, other = Limit("requests", 80, "no more"), Peer("greedy"), Peer("other")
    for _ in range(70):
        limit.take(greedy)
    with pytest.raises(Overloaded, match="no more"):
        limit.take(greedy)
    for _ in range(10):
        limit.take(other)
    with pytest.raises(Overloaded):
        limit.take(other)
    limit.count(greedy, -11)
    limit.take(greedy)
    assert limit.used == 70


def test_tickets_of_one_token_are_one_peer():
    """The address that a ticket is shown from does not matter."""
    peers = Peers(by_token=True, proxies=TrustedProxies(()))

    def peer(address: str, holder: bytes) -> Peer:
        return peers.of({"client": (address, 1), "headers": [], TICKET_HOLDER: holder})

    first = peer("192.0.2.1", b"ann")
    assert peer("192.0.2.2", b"ann") is first
    assert peer("192.0.2.1", b"bob") is not first
