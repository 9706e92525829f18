"""Leaves requests for hosts that are not allowed to the route, which refuses them."""

from __future__ import annotations

from forebay_web.fast_path.protocol import FastPathProtocol, Handlers, KeyHandler, Outcome, left_to_slow_path
from forebay_web.fast_path.recogniser import RecognisedBatch, RequestTemplate
from forebay_web.hosts import AllowedHosts


def addressed(handlers: Handlers, hosts: AllowedHosts) -> Handlers:
    """The handlers, for requests whose host is allowed."""
    return handlers if hosts.any else _Addressed(handlers, hosts)


class _Addressed:
    """Checks the host once for each form of reads, so that no read of that form takes longer for it."""

    def __init__(self, handlers: Handlers, hosts: AllowedHosts) -> None:
        self._handlers = handlers
        self._hosts = hosts

    def key(self, template: RequestTemplate) -> KeyHandler:
        return self._handlers.key(template) if self._hosts.allows(template.host) else left_to_slow_path

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
        return self._handlers.batch(request, protocol) if self._hosts.allows(request.template.host) else None
