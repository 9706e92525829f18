"""TLS (RFC 8446): the certificate by which a listener speaks it, and the authorities that a client trusts.

Both come from PEM files that may be replaced under a running process.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from forebay.reloaded_file import ReloadedFile

_NO_CERTIFICATE = "it contains no certificate in PEM form"


def listener_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """How a listener speaks TLS, None if it does not; a handshake uses what the files contain by then.

    ``certificate`` begins with the listener's own, followed by those of the authorities between it and the root;
    ``key`` is its private key, not encrypted. Raises ``SettingError``.
    """
    if certificate is None or key is None:
        return None

    def own(certificate_text: str, key_text: str) -> ssl.SSLContext:
        return _own(certificate_text, key_text, key)

    current = ReloadedFile(certificate, own, also=(key,), secrets=(key,))
    context = current()

    def use_current(handshake: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        handshake.context = current()

    context.sni_callback = use_current
    return context


def trust(authorities: Path) -> Callable[[], ssl.SSLContext]:
    """Returns the current context of a client that trusts a file's authorities only; raises ``SettingError``."""
    return ReloadedFile(authorities, _trusting)


def _own(certificate: str, key: str, key_file: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, _refuse_encrypted(key_file))
        except ssl.SSLError as error:
            raise ValueError(_mismatch(error, certificate, key, key_file)) from None
    return context


def _mismatch(error: ssl.SSLError, certificate: str, key: str, key_file: Path) -> str:
    """What OpenSSL finds wrong with a certificate and its key, in words."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"its certificate does not belong to the key in {key_file}; give the two that were issued together"
    if "-----BEGIN CERTIFICATE-----" not in certificate:
        return _NO_CERTIFICATE
    if "PRIVATE KEY-----" not in key:
        return f"its key is to be in {key_file}, which contains no private key in PEM form"
    return f"its certificate, or the key in {key_file}, is damaged or of an unknown kind ({error.reason})"


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """The path of a file with this text: OpenSSL reads from paths, where there may be another file by then."""
    with open(os.memfd_create("pem"), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _refuse_encrypted(key: Path) -> Callable[[], str]:
    """Without this, OpenSSL would ask the terminal for the password."""

    def password() -> str:
        raise ValueError(f"its key, in {key}, is encrypted; decrypt it with openssl pkey")

    return password


def _trusting(text: str) -> ssl.SSLContext:
    if not text.strip():
        # The system's authorities would be trusted instead.
        raise ValueError(_NO_CERTIFICATE)
    try:
        return ssl.create_default_context(cadata=text)
    except ssl.SSLError as error:
        if "-----BEGIN CERTIFICATE-----" not in text:
            raise ValueError(_NO_CERTIFICATE) from None
        raise ValueError(f"its certificates are damaged or of an unknown kind ({error.reason})") from None
