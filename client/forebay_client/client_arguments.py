"""What a client is made of, and is made of again where it is unpickled."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from forebay.errors import ClientUnusable

T = TypeVar("T")
NOT_PARTITION_AWARE = (
    "partition_aware is no more: run a router beside the program, which all languages share, and give the client "
    "its URL. See docs/sidecar.md."
)


@dataclass(frozen=True)
class ClientArguments:
    """The arguments of a client; its connections belong to its process, so they are not pickled."""

    urls: str | Sequence[str]
    timeout_ms: int
    token: str | None
    verify: ssl.SSLContext | bool
    transport: Any
    decimals: bool

    def maker(self, kind: Callable[..., T]) -> partial[T]:
        """What makes such a client in any process; raises ``ClientUnusable`` if they are of this process only."""
        if self.transport is not None or isinstance(self.verify, ssl.SSLContext):
            raise ClientUnusable(
                "A client that was given a transport or an ssl.SSLContext cannot be pickled. Make it in the "
                "process that reads, or name the authorities to trust in the variable SSL_CERT_FILE there."
            )
        return partial(kind, **asdict(replace(self, urls=_plain(self.urls))))


def _plain(urls: str | Sequence[str]) -> str | list[str]:
    return urls if isinstance(urls, str) else list(urls)
