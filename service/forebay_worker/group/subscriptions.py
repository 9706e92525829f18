"""What a leader reads from the members' messages: one subscription for each worker that can be given tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forebay.streams_metadata import HostInfo
from forebay_worker.group.messages import SubscriptionInfo, UnreadableMessage

log = logging.getLogger(__name__)


class SubscriptionReader:
    """Decodes members' messages, and warns once of a member that is given no tasks.

    A member is warned of again if its trouble was gone meanwhile.
    """

    def __init__(self) -> None:
        self._unreadable: set[str] = set()
        self._address_taken: set[str] = set()

    def read(self, messages: Mapping[str, bytes]) -> dict[str, SubscriptionInfo]:
        """The readable messages by member; one that cannot be read must not keep the rest from being led."""
        subscriptions, unreadable = {}, set()
        for name, raw in messages.items():
            try:
                subscriptions[name] = SubscriptionInfo.decode(raw)
            except UnreadableMessage as error:
                if name not in self._unreadable:
                    log.warning("the member %s is given no tasks: %s", name, error)
                unreadable.add(name)
        self._unreadable = unreadable
        return subscriptions

    def one_an_address(self, members: Mapping[str, SubscriptionInfo]) -> dict[str, SubscriptionInfo]:
        """Of several that advertise the same address, the first: routers could not distinguish them."""
        of_address: dict[HostInfo, SubscriptionInfo] = {}
        taken = set()
        for info in sorted(members.values(), key=lambda info: (info.incarnation, info.process_id)):
            first = of_address.setdefault(info.host, info)
            if first is not info:
                taken.add(info.process_id)
                if info.process_id not in self._address_taken:
                    _report_taken_address(info, first)
        self._address_taken = taken
        return {info.process_id: info for info in of_address.values()}


def one_a_process(subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, SubscriptionInfo]:
    """By process: if one crashed and came back, both are members until the first one's session ends."""
    newest: dict[str, SubscriptionInfo] = {}
    for info in sorted(subscriptions.values(), key=lambda info: info.incarnation):
        newest[info.process_id] = info
    return newest


def _report_taken_address(second: SubscriptionInfo, first: SubscriptionInfo) -> None:
    log.error(
        "the worker %s gets no tasks: it advertises %s, as the worker %s does. Give each its own "
        "--advertise or --listen.",
        second.process_id,
        second.host,
        first.process_id,
    )
