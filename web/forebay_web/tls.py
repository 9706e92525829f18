"""TLS (RFC 8446): the certificate by which a listener speaks it, and the authorities that a client trusts.

Both come from PEM files that may be replaced under a running process.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay.reloaded_file import ReloadedFile

_BEGIN = "CERTIFICATE-----"
_NO_CERTIFICATE = "it contains no certificate in PEM form"


def listener_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """How a listener speaks TLS, None if it does not; a handshake uses what the files contain by then.

    ``certificate`` begins with the listener's own, followed by those of the authorities between it and the root;
    ``key`` is its private key, not encrypted. Raises ``SettingError``.
    """
    if certificate is None or key is None:
        return None

    def own(certificate_text: str, key_text: str) -> ssl.SSLContext:
        if _BEGIN not in certificate_text:
            raise ValueError(_NO_CERTIFICATE)
        if "PRIVATE KEY-----" not in key_text:
            raise ValueError(f"its key is to be in {key}, which contains no private key in PEM form")
        loaded = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        loaded.set_alpn_protocols(["http/1.1"])
        try:
            # Without a password, OpenSSL asks the terminal for that of an encrypted key.
            loaded.load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            cause = error.reason or "one is damaged, or the key is encrypted"
            reason = f"OpenSSL cannot use it with the key in {key}: {cause}"
            is_weak = "_TOO_" in cause
            remedy = "" if is_weak else ". Give the two that were issued together, the key not encrypted"
            raise ValueError(f"{reason}{remedy}") from None
        return loaded

    current = ReloadedFile(certificate, own, also=(key,), secrets=(key,))
    context = current()

    def use_current(handshake: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        handshake.context = current()

    context.sni_callback = use_current
    return context


def trust(authorities: Path) -> Callable[[], ssl.SSLContext]:
    """Returns the current context of a client that trusts a file's authorities only; raises ``SettingError``."""
    return ReloadedFile(authorities, _trusting)


def _trusting(text: str) -> ssl.SSLContext:
    if not text.strip():
        # The system's authorities would be trusted instead.
        raise ValueError(_NO_CERTIFICATE)
    try:
        return ssl.create_default_context(cadata=text)
    except ssl.SSLError as error:
        if _BEGIN not in text:
            raise ValueError(_NO_CERTIFICATE) from None
        raise ValueError(f"its certificates are damaged or of an unknown kind ({error.reason})") from None
