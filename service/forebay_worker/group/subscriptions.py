"""What a leader reads from the members' messages: one subscription for each worker that can be given tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forebay.logs import LogThrottle
from forebay.streams_metadata import HostInfo
from forebay_worker.group.messages import SubscriptionInfo, UnreadableMessage

log = logging.getLogger(__name__)


class SubscriptionReader:
    """Decodes members' messages, and warns of each member that is given no tasks, not at every round."""

    def __init__(self) -> None:
        self._logged = LogThrottle()

    def read(self, messages: Mapping[str, bytes]) -> dict[str, SubscriptionInfo]:
        """The readable messages by member; one that cannot be read must not keep the rest from being led."""
        subscriptions = {}
        for name, raw in messages.items():
            try:
                subscriptions[name] = SubscriptionInfo.decode(raw)
            except UnreadableMessage as error:
                if self._logged.allow(f"{name}: {type(error).__name__}"):
                    log.warning("the member %s is given no tasks: %s", name, error)
        return subscriptions

    def one_an_address(self, members: Mapping[str, SubscriptionInfo]) -> dict[str, SubscriptionInfo]:
        """Of several that advertise the same address, the first: routers could not distinguish them."""
        of_address: dict[HostInfo, SubscriptionInfo] = {}
        for info in sorted(members.values(), key=lambda info: (info.incarnation, info.process_id)):
            first = of_address.setdefault(info.host, info)
            if first is not info and self._logged.allow(f"{info.process_id}: {info.host}"):
                log.error(
                    "the worker %s gets no tasks: it advertises %s, as the worker %s does. Give each its own "
                    "--advertise or --listen.",
                    info.process_id,
                    info.host,
                    first.process_id,
                )
        return {info.process_id: info for info in of_address.values()}


def one_a_process(subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, SubscriptionInfo]:
    """By process: if one crashed and came back, both are members until the first one's session ends."""
    newest: dict[str, SubscriptionInfo] = {}
    for info in sorted(subscriptions.values(), key=lambda info: info.incarnation):
        newest[info.process_id] = info
    return newest
