"""By which hosts requests may address a process."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.listen_addresses import UnixAddress
from forebay.streams_metadata import HostInfo
from forebay_web.hosts import ANY_HOST, allowed_hosts

SOCKET = UnixAddress(Path("/run/forebay/router.sock"))
LOOPBACK, EVERYWHERE = (SOCKET, HostInfo("127.0.0.1", 8080)), (SOCKET, HostInfo("0.0.0.0", 8080))
OWN = [
    b"localhost",
    b"LocalHost:8080",
    b"localhost.",
    b"a.localhost:1",
    b"127.0.0.1",
    b"127.0.0.1:8080",
    b"[::1]:80",
]
ADDRESSES = [b"10.0.0.7", b"10.0.0.7:8080", b"[fd00::7]:8080"]
OTHERS = [b"evil.example", b"evil.example:8080", b"localhost.evil.example", b"127.0.0.1.evil.example", b"", b":80"]
OTHERS += [
    b"evil.example@localhost",
    b"localhost@evil.example",
    b"evil.example/localhost",
    b"[evil.example]",
    b"\xff",
]


@pytest.mark.parametrize("host", OWN + ADDRESSES)
def test_loopback_allows_this_machines_hosts(host):
    """This machine's names and addresses are allowed as `Host`."""
    assert allowed_hosts(LOOPBACK, ()).allows(host)


@pytest.mark.parametrize("host", OTHERS)
def test_on_a_unix_socket_the_same_are_allowed(host):
    assert allowed_hosts([SOCKET], ()).allows(b"localhost")
    assert not allowed_hosts([SOCKET], ()).allows(host)


@pytest.mark.parametrize("host", OTHERS)
def test_on_loopback_no_other_name_is(host):
    assert not allowed_hosts(LOOPBACK, ()).allows(host)


@given(host=st.binary(max_size=40))
def test_where_other_machines_reach_it_any_is(host):
    assert allowed_hosts(EVERYWHERE, ()).allows(host)
    assert allowed_hosts(LOOPBACK, ("reads.example.org", "*")) is ANY_HOST


@pytest.mark.parametrize("listen", [LOOPBACK, EVERYWHERE])
def test_listed_and_advertised_hosts_are_allowed(listen):
    """A listed name is allowed with any port."""
    hosts = allowed_hosts(listen, ("Reads.example.org",), HostInfo("worker-1.svc", 8080))
    for host in [
        b"reads.example.org",
        b"READS.example.org.:99",
        b"worker-1.svc",
        b"worker-1.svc:1",
        *OWN,
        *ADDRESSES,
    ]:
        assert hosts.allows(host)
    for host in [*OTHERS, b"more.reads.example.org"]:
        assert not hosts.allows(host)


def test_a_worker_on_loopback_is_addressed_as_it_advertises():
    assert allowed_hosts(LOOPBACK, (), HostInfo("worker-1.svc", 8080)).allows(b"worker-1.svc:8080")
