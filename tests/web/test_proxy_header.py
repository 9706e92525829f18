"""The header by which a proxy names its client: each byte of it, and none after it."""

import ipaddress
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_web.proxy_header import (
    MOST_HEADER_BYTES,
    begins_header,
    client_of,
    header_bytes,
    is_whole,
)

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PORTS = st.integers(0, 0xFFFF)
ADDRESSES = st.one_of(*(st.tuples(st.ip_addresses(v=v), st.ip_addresses(v=v), PORTS, PORTS) for v in (4, 6)))
EXTENSIONS = st.binary(max_size=300)


def line(source, target, source_port, target_port):
    return f"PROXY TCP{source.version} {source} {target} {source_port} {target_port}\r\n".encode()


def block(command, family, content):
    return SIGNATURE + bytes([command, family]) + len(content).to_bytes(2) + content


def binary(source, target, source_port, target_port, extensions=b""):
    ports = source_port.to_bytes(2) + target_port.to_bytes(2)
    family = {4: 0x11, 6: 0x21}[source.version]
    return block(0x21, family, source.packed + target.packed + ports + extensions)


def read(pieces):
    """The header in these pieces, and what is left of the last one."""
    received = b""
    for piece in pieces:
        taken = header_bytes(received, piece)
        received += piece[:taken]
        if is_whole(received):
            return received, piece[taken:]
    return None


@st.composite
def sent(draw, headers):
    """A header, what follows it, and both in pieces."""
    header, rest = draw(headers), draw(st.binary(max_size=200))
    text = header + rest
    cuts = sorted({0, *draw(st.lists(st.integers(0, len(text)), max_size=8)), len(text)})
    return header, [text[begin:end] for begin, end in itertools.pairwise(cuts)]


HEADERS = ADDRESSES.map(lambda parts: line(*parts)) | st.builds(
    lambda parts, more: binary(*parts, more), ADDRESSES, EXTENSIONS
)


@given(sent(HEADERS))
def test_however_it_is_cut_it_is_read_to_its_end_and_no_further(case):
    header, pieces = case
    found, left = read(pieces)
    assert found == header
    # What was not read is still there.
    assert (header + left).startswith(header)
    assert b"".join(pieces).startswith(header + left)


@given(ADDRESSES, EXTENSIONS)
def test_both_versions_name_the_client(parts, extensions):
    client = (str(parts[0]), parts[2])
    assert client_of(line(*parts)) == client
    assert client_of(binary(*parts, extensions)) == client


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        block(0x20, 0x00, b""),
        # A health check by the proxy itself.
        block(0x20, 0x11, bytes(12)),
        block(0x21, 0x00, b""),
        block(0x21, 0x31, b"/run/a.sock".ljust(216, b"\0")),
    ],
)
def test_one_without_an_address_stands_for_the_proxy(header):
    assert is_whole(header)
    assert client_of(header) is None


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
        b"PROXY TCP4 1.2.3.400 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 1.2.3.4  1.2.3.4 1 2\r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY \r\n",
        block(0x21, 0x11, bytes(11)),
        block(0x21, 0x41, bytes(12)),
        block(0x22, 0x11, bytes(12)),
        block(0x11, 0x11, bytes(12)),
    ],
)
def test_one_that_is_not_well_formed_is_refused(header):
    assert is_whole(header)
    with pytest.raises(ValueError, match="header"):
        client_of(header)


@given(st.binary(max_size=300))
def test_anything_is_a_header_or_refused_or_awaits_more(received):
    try:
        whole = is_whole(received)
    except ValueError:
        return
    if whole:
        try:
            client = client_of(received)
        except ValueError:
            return
        assert client is None or ipaddress.ip_address(client[0])
    else:
        assert len(received) < MOST_HEADER_BYTES


@pytest.mark.parametrize(
    "received",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 " + bytes(96),
        SIGNATURE + b"\x21\x11\xff\xff",
        b"\x16\x03\x01",
    ],
)
def test_what_begins_none_or_one_too_long_is_refused_at_once(received):
    with pytest.raises(ValueError, match="header"):
        is_whole(received)


def test_headers_are_distinguished_from_requests():
    assert begins_header(b"PROXY TCP4 1.2.3.4")
    assert begins_header(SIGNATURE)
    for request in (
        b"GET / HTTP/1.1\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\n",
        b"PROPFIND / HTTP/1.1\r\n",
        b"",
        b"\x16",
    ):
        assert not begins_header(request)
