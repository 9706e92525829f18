"""Serves an application as both tiers do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings
from forebay_web.limits import Limits
from forebay_web.server import Service, serve


def limits() -> Limits:
    """Those that a router has by default."""
    return Limits(RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, {})))


def serve_application(
    app: ASGIApp,
    listener: socket.socket,
    protocol: type[asyncio.Protocol] = asyncio.Protocol,
    on_drain: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """Serve it until a signal ends it."""
    serve(lambda: Service(app, protocol, on_drain), [listener], limits(), **options)
