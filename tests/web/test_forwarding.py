"""Whose request a proxy sends: what it wrote counts, and nothing that its client wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay_web.forwarding import TrustedProxies, forwarded_chain

PROXY, OUTER_PROXY, CLIENT, OTHER = "10.0.0.7", "10.0.0.8", "203.0.113.9", "198.51.100.1"
PROXIES = TrustedProxies(["10.0.0.0/24"])
ADDRESSES = st.ip_addresses().map(str)


@pytest.mark.parametrize(
    ("x_forwarded_for", "client"),
    [
        ([CLIENT], CLIENT),
        ([f"{CLIENT}:4711"], CLIENT),
        (["[2001:db8::9]:4711"], "2001:db8::9"),
        (["2001:DB8:0::9"], "2001:db8::9"),
        ([f"{OTHER}, {CLIENT}"], CLIENT),
        ([f"{CLIENT}, {OUTER_PROXY}"], CLIENT),
        ([CLIENT, OUTER_PROXY], CLIENT),
        ([OUTER_PROXY], OUTER_PROXY),
        (["unknown"], PROXY),
        ([f"{CLIENT}, _hidden, {OUTER_PROXY}"], OUTER_PROXY),
        ([""], PROXY),
        ([], PROXY),
    ],
)
def test_the_last_host_that_is_no_proxy_is_the_client(x_forwarded_for, client):
    assert PROXIES.client(PROXY, forwarded_chain([value.encode() for value in x_forwarded_for], [])) == client


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ([f"for={CLIENT};proto=https;by={PROXY}"], CLIENT),
        ([f'by={PROXY}; For="{CLIENT}:80"'], CLIENT),
        (['for="[2001:db8::9]:4711"'], "2001:db8::9"),
        ([f"for={OTHER}, for={CLIENT}"], CLIENT),
        ([f"for={CLIENT}", f"for={OUTER_PROXY}"], CLIENT),
        ([f"for={CLIENT}, proto=http"], PROXY),
        (["for=_hidden"], PROXY),
    ],
)
def test_so_it_is_in_the_standards_header(forwarded, client):
    assert PROXIES.client(PROXY, forwarded_chain([], [value.encode() for value in forwarded])) == client


@given(peer=ADDRESSES, hosts=st.lists(ADDRESSES))
def test_who_is_no_proxy_cannot_pass_for_another(peer, hosts):
    chain = forwarded_chain([", ".join(hosts).encode()], [])
    if not peer.startswith("10.0.0."):
        assert PROXIES.client(peer, chain) == peer


@given(written=st.lists(ADDRESSES | st.text(st.characters(codec="latin-1"), max_size=10)))
def test_what_a_client_wrote_before_its_proxy_changes_nothing(written):
    chain = forwarded_chain([", ".join([*written, CLIENT]).encode("latin-1")], [])
    assert PROXIES.client(PROXY, chain) == CLIENT


def test_of_two_headers_a_client_may_have_written_one():
    assert forwarded_chain([CLIENT.encode()], [f"for={OTHER}".encode()]) == b""


def test_a_long_header_names_the_client_too():
    chain = b", ".join([b"192.0.2.7"] * 100)
    assert TrustedProxies(["10.0.0.0/8"]).client("10.0.0.1", chain) == "192.0.2.7"


def test_unix_socket_peer_is_a_proxy_only_if_trusted():
    chain = CLIENT.encode()
    assert PROXIES.client("user 33", chain) == "user 33"
    assert TrustedProxies(["unix"]).client("user 33", chain) == CLIENT
    assert TrustedProxies(["unix"]).client(PROXY, chain) == PROXY


def test_a_proxy_is_named_by_its_network():
    assert not TrustedProxies([]).any
    with pytest.raises(SettingError, match="trusted_proxies: 'proxy"):
        TrustedProxies(["proxy.example"])
