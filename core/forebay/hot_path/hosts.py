"""Leaves requests for hosts that are not allowed to the route, which refuses them."""

from __future__ import annotations

from forebay.hot_path.protocol import Handlers, HotPathProtocol, KeyHandler, Outcome, left_to_the_route
from forebay.hot_path.recogniser import HotBatch, RequestForm
from forebay.rest.hosts import AllowedHosts


def addressed(handlers: Handlers, hosts: AllowedHosts) -> Handlers:
    """The handlers, for requests whose host is allowed."""
    return handlers if hosts.any else _Addressed(handlers, hosts)


class _Addressed:
    """Checks the host once for each form of reads, so that no read of that form takes longer for it."""

    def __init__(self, handlers: Handlers, hosts: AllowedHosts) -> None:
        self._handlers = handlers
        self._hosts = hosts

    def key(self, form: RequestForm) -> KeyHandler:
        return self._handlers.key(form) if self._hosts.allows(form.host) else left_to_the_route

    def batch(self, request: HotBatch, protocol: HotPathProtocol) -> Outcome:
        return self._handlers.batch(request, protocol) if self._hosts.allows(request.form.host) else None
