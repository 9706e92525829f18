"""Which member leads, and whose subscriptions count: pure functions over the members' messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from forebay.streams_metadata import HostInfo
from forebay.topology import Topology
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import SubscriptionInfo
from forebay_worker.group.placement import Assignment


def may_lead(mine: str, fingerprints: Iterable[str], *, led: bool) -> bool:
    """Whether a member has the most frequent topology: one misconfigured worker must not lead the rest.

    Of several that are equally frequent, the one that has led stays, else the first by name is chosen.
    """
    counts = Counter(fingerprints)
    most = max(counts.values())
    foremost = [fingerprint for fingerprint in sorted(counts) if counts[fingerprint] == most]
    return mine in foremost if led else mine == foremost[0]


def alike(topology: Topology, subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, SubscriptionInfo]:
    """Those with the leader's topology."""
    return {
        name: subscription
        for name, subscription in subscriptions.items()
        if subscription.fingerprint == topology.fingerprint
    }


def holders(assignment: Assignment) -> set[str]:
    """Every member with a place in the target."""
    return {name for placement in assignment.target.values() for name in placement.members}


def may_return(info: SubscriptionInfo) -> bool:
    """Whether a member that is gone keeps the place that it has, by its last message."""
    return info.returns and info.health is not MemberHealth.EVICTED


def may_get_place(info: SubscriptionInfo) -> bool:
    """Whether a member that is gone without a place gets one: it has copies that an assignment forgot."""
    return may_return(info) and bool(info.offsets) and info.health is MemberHealth.HEALTHY


def superseded(by: HostInfo | str, mine: HostInfo) -> str:
    """The complaint of a worker whose process id another one has, that was started later."""
    return (
        f"The worker at {by} was started later with this one's process id: the state directory of one is a copy "
        f"of the other's. This one, at {mine}, gets no tasks. Stop one, and remove process.json from its state "
        "directory."
    )
