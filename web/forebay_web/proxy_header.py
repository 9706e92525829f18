"""The header by which a proxy names its client before anything else on a connection.

Versions 1 and 2 of HAProxy's PROXY protocol (https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re

_TEXT = b"PROXY "
_BINARY = b"\r\n\r\n\0\r\nQUIT\n"
_MOST_TEXT_BYTES = 107
_FIXED_BYTES = 16
_MOST_PORT = 0xFFFF
MOST_HEADER_BYTES = 4 << 10
"""Limit for a whole header. Version 2 allows 64 kB, of which addresses take 216 and extensions the rest."""

_LINE = re.compile(rb"PROXY TCP(4|6) ([0-9A-Fa-f.:]+) [0-9A-Fa-f.:]+ ([0-9]{1,5}) [0-9]{1,5}\r\n")
_UNKNOWN = b"PROXY UNKNOWN"
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES = {0x00: 0, 0x11: 12, 0x12: 12, 0x21: 36, 0x22: 36, 0x31: 216, 0x32: 216}
"""How much the addresses take, by family and protocol."""
_BINARY_ADDRESS_BYTES = {0x11: 4, 0x21: 16}

Client = tuple[str, int]
"""An address and its port."""


def begins_header(received: bytes) -> bool:
    """Whether no HTTP and no TLS begins so: for what arrives from somebody who may send no header."""
    return received.startswith((_TEXT, _BINARY[:5]))


def is_whole(received: bytes) -> bool:
    """Whether these bytes are a header; raises ``ValueError`` if they begin none, or one that is too long."""
    return len(received) == _end(received)


def header_bytes(received: bytes, arrived: bytes) -> int:
    """How many bytes of what has arrived belong to the header that was received so far; raises ``ValueError``."""
    end = _end(received + arrived)
    return len(arrived) if end is None else min(len(arrived), end - len(received))


def _end(received: bytes) -> int | None:
    """Where the header ends, None while that is not known."""
    if received.startswith(_TEXT[: len(received)]):
        return _line_end(received)
    if not received.startswith(_BINARY[: len(received)]):
        raise ValueError("it does not begin with a header of the PROXY protocol")
    if len(received) < _FIXED_BYTES:
        return None
    end = _FIXED_BYTES + int.from_bytes(received[14:16])
    if end > MOST_HEADER_BYTES:
        raise ValueError(f"its header has {end} bytes, more than {MOST_HEADER_BYTES}")
    return end


def _line_end(received: bytes) -> int | None:
    at = received.find(b"\r\n", 0, _MOST_TEXT_BYTES)
    if at < 0 and len(received) >= _MOST_TEXT_BYTES:
        raise ValueError(f"its header's line is longer than {_MOST_TEXT_BYTES} bytes")
    return None if at < 0 else at + 2


def client_of(header: bytes) -> Client | None:
    """The client that a whole header names, None if it stands for the proxy itself or names no address.

    Raises ``ValueError`` for a header that is not well-formed.
    """
    return _of_line(header) if header.startswith(_TEXT) else _of_block(header)


def _of_line(header: bytes) -> Client | None:
    if header.startswith((_UNKNOWN + b" ", _UNKNOWN + b"\r\n")):
        return None
    parts = _LINE.fullmatch(header)
    if parts is None:
        raise ValueError("its header's line is not well-formed")
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(parts[2].decode())
        if address.version == int(parts[1]) and int(parts[3]) <= _MOST_PORT:
            return str(address), int(parts[3])
    raise ValueError("its header's line names no address of its family")


def _of_block(header: bytes) -> Client | None:
    command, family = header[12], header[13]
    if command == _LOCAL:
        return None
    if command != _PROXY or family not in _ADDRESS_BYTES:
        raise ValueError("its header has a version, a command or a family of addresses that is unknown")
    if len(header) < _FIXED_BYTES + _ADDRESS_BYTES[family]:
        raise ValueError("its header ends before its addresses do")
    length = _BINARY_ADDRESS_BYTES.get(family)
    if length is None:
        return None
    port_at = _FIXED_BYTES + 2 * length
    address = ipaddress.ip_address(header[_FIXED_BYTES : _FIXED_BYTES + length])
    return str(address), int.from_bytes(header[port_at : port_at + 2])
