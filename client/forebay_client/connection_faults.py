"""Why a server gave no answer to a command, in words, and what to do."""

from __future__ import annotations

import re
import ssl

import httpx

_ANOTHER = "Name a router or worker with --url."
_WRONG_NAME = (62, 64)
"""OpenSSL's codes of certificates for other names and addresses."""
_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons where no TLS comes."""


def fault_of(error: Exception, url: str, place: str) -> str:
    """What happened and the remedy, for what ``httpx`` raised; ``place`` is the server's URL and its proxy."""
    tls = tls_fault(error)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return _of_certificate(tls, place)
    if tls is not None and tls.reason in _PLAIN:
        return f"{place} does not answer in TLS: it speaks HTTP. Give an http:// URL with --url."
    closed = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and url.startswith("http:")
    remedy = "If it speaks HTTPS, give an https:// URL with --url." if closed else _ANOTHER
    reason = re.sub(r"^\[Errno \d+\] | \(_ssl\.c:\d+\)$|\.$", "", str(error)) or "it takes too long"
    return f"Nothing answers at {place}: {reason}. {remedy}"


def tls_fault(error: BaseException | None) -> ssl.SSLError | None:
    """The fault of TLS that is behind an error, None without one."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _of_certificate(error: ssl.SSLCertVerificationError, place: str) -> str:
    remedy = "Name the file of the authority that issued it in the variable SSL_CERT_FILE."
    if error.verify_code in _WRONG_NAME:
        remedy = "Give --url a name that the certificate has."
    return f"The certificate of {place} is not accepted: {error.verify_message.rstrip('.')}. {remedy}"
