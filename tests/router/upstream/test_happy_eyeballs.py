"""In which order, and how soon, the addresses of a name are tried."""

import socket

import pytest

from forebay_router.upstream.happy_eyeballs import Address, attempt_delay_s, in_turn
from tests.support.names import infos


def test_address_families_alternate_without_duplicates():
    """The resolver's order is kept within each family."""
    found = infos("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.1")
    assert [address.host for address in in_turn(found)] == [
        "2001:db8::1",
        "192.0.2.1",
        "2001:db8::2",
        "2001:db8::3",
    ]
    assert in_turn(infos("192.0.2.9"))[0] == Address(socket.AF_INET, ("192.0.2.9", 80))
    assert in_turn([]) == []


@pytest.mark.parametrize(("timeout_s", "addresses", "delay_s"), [(5.0, 2, 0.25), (0.3, 3, 0.1), (0.3, 0, 0.25)])
def test_all_addresses_are_tried_within_the_time(timeout_s, addresses, delay_s):
    assert attempt_delay_s(timeout_s, addresses) == pytest.approx(delay_s)
