"""One limit shared by peers: whatever one holds, the next is served."""

import pytest

from forebay.errors import Overloaded
from forebay.rest.limits import Limit, Peer


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
