"""One limit shared by peers: whatever one holds, the next is served."""

import hashlib

import pytest

from forebay.bearer_tokens import TokenHolder
from forebay.errors import Overloaded
from forebay_web.forwarding import TrustedProxies
from forebay_web.limits import Limit, Peer, Peers
from forebay_web.tickets import TICKET_HOLDER


def test_one_peer_leaves_an_eighth_to_others():
    limit, greedy, other = Limit("requests", 80, "no more"), Peer("greedy"), Peer("other")
    for _ in range(70):
        limit.held_by(greedy, 1)
    with pytest.raises(Overloaded, match="no more"):
        limit.held_by(greedy, 1)
    for _ in range(10):
        limit.held_by(other, 1)
    with pytest.raises(Overloaded):
        limit.held_by(other, 1)
    limit.count(greedy, -11)
    limit.held_by(greedy, 1)
    assert limit.used == 70


def test_what_large_peers_hold_beyond_the_limit_leaves_small_ones_theirs():
    """What a client does not read is counted, however much it is."""
    limit, slow, small, other = Limit("memory", 80, "no more"), Peer("slow"), Peer("small"), Peer("other")
    limit.count(slow, 200)
    limit.held_by(small, 6)
    limit.held_by(other, 4)
    with pytest.raises(Overloaded):
        limit.held_by(other, 1)
    with pytest.raises(Overloaded):
        limit.held_by(slow, 1)
    limit.count(small, -6)
    limit.held_by(other, 6)
    limit.count(slow, -200)
    limit.held_by(slow, 60)
    assert limit.used == 70


def test_every_spelling_of_a_token_and_its_tickets_are_one_peer():
    peers = Peers(by_token=True, proxies=TrustedProxies(()))

    def sent(**of: bytes) -> Peer:
        headers = [(b"authorization", of["token"])] if "token" in of else []
        ticket = {TICKET_HOLDER: of["ticket"]} if "ticket" in of else {}
        return peers.of({"client": ("192.0.2.1", 1), "headers": headers, **ticket})

    first = sent(token=b"Bearer ann-and-her-token")
    assert sent(token=b"bearer   ann-and-her-token ") is first
    assert peers.sent_by("192.0.2.2", b"BEARER ann-and-her-token", b"") is first
    assert sent(ticket=TokenHolder(hashlib.sha256(b"ann-and-her-token").digest(), None)) is first
    assert sent(token=b"Bearer " + b"x" * 1_000) is sent(token=b"bearer " + b"x" * 1_000)
    assert sent(token=b"Bearer bob-and-his-token") is not first


def test_tickets_of_one_token_are_one_peer():
    """The address that a ticket is shown from does not matter."""
    peers = Peers(by_token=True, proxies=TrustedProxies(()))

    def peer(address: str, holder: bytes) -> Peer:
        return peers.of({"client": (address, 1), "headers": [], TICKET_HOLDER: TokenHolder(holder, None)})

    first = peer("192.0.2.1", b"ann")
    assert peer("192.0.2.2", b"ann") is first
    assert peer("192.0.2.1", b"bob") is not first
