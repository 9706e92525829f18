"""Where a process listens, as it is written."""

import re
from pathlib import Path

import pytest

from forebay.listen_addresses import UnixAddress, exposed_addresses, parse_listen_address
from forebay.streams_metadata import HostInfo

SOCKET = UnixAddress(Path("/run/forebay/router.sock"))


@pytest.mark.parametrize("text", ["unix:/run/forebay/router.sock", "unix:///run/forebay/router.sock"])
def test_a_unix_socket_is_written_as_a_url(text):
    assert parse_listen_address(text) == SOCKET
    assert str(SOCKET) == "unix:/run/forebay/router.sock"


@pytest.mark.parametrize(
    "text", ["unix:", "unix:router.sock", "unix://host/router.sock", "unix:/run/", "unix:/" + 107 * "a"]
)
def test_what_is_no_path_of_a_socket_is_refused(text):
    with pytest.raises(ValueError, match="unix:"):
        parse_listen_address(text)
    assert UnixAddress.parse("unix:/" + 106 * "a")


@pytest.mark.parametrize("port", ["0", "65536", "73616", "99999999999", "٣"])
@pytest.mark.parametrize("host", ["router-1", "127.0.0.1", "[::1]"])
def test_a_port_that_is_none_is_refused(host, port):
    with pytest.raises(ValueError, match=rf"^{re.escape(repr(f'{host}:{port}'))} is not an address"):
        parse_listen_address(f"{host}:{port}")
    assert parse_listen_address("[::1]:65535") == HostInfo("::1", 65_535)


def test_only_addresses_of_tcp_are_exposed():
    everywhere = HostInfo("0.0.0.0", 8080)
    assert exposed_addresses([SOCKET, HostInfo("127.0.0.1", 8080), everywhere]) == [everywhere]
