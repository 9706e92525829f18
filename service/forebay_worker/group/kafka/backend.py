"""The group on Kafka, as ``kafka://`` URLs name it."""

from __future__ import annotations

from forebay.topology import Topology
from forebay_changelog import Changelog
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.membership import Membership, MembershipBackend


class KafkaGroups:
    """The interface is ``MembershipBackend``."""

    form = "kafka://HOST:PORT,HOST:PORT"

    def group_url(self, changelog: str) -> str:
        """The changelog's own cluster."""
        return changelog

    def open(
        self, url: str, topology: Topology, changelog: Changelog, policy: AssignmentPolicy, times: GroupTimeouts
    ) -> Membership:
        """The membership of a consumer group; see ``MembershipBackend``."""
        from forebay_worker.group.kafka.membership import KafkaMembership

        return KafkaMembership(url, Leader(topology, changelog, policy), times)


BACKEND: MembershipBackend = KafkaGroups()
