"""In which order the addresses of a name are tried."""

import socket

from forebay_router.upstream.opener import interleaved
from tests.support.names import infos


def test_address_families_alternate_without_duplicates():
    """The resolver's order is kept within each family."""
    found = infos("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.1")
    assert [sockaddr[0] for _, sockaddr in interleaved(found)] == [
        "2001:db8::1",
        "192.0.2.1",
        "2001:db8::2",
        "2001:db8::3",
    ]
    assert interleaved(infos("192.0.2.9"))[0] == (socket.AF_INET, ("192.0.2.9", 80))
    assert interleaved([]) == []
