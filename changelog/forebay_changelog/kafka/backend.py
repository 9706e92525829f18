"""The changelog on Kafka, as ``kafka://`` URLs name it."""

from __future__ import annotations

from forebay_changelog.backend import ChangelogBackend
from forebay_changelog.base import Changelog


class KafkaBackend:
    """The interface is ``ChangelogBackend``."""

    form = "kafka://HOST:PORT,HOST:PORT"

    def open(self, url: str, *, create: bool) -> Changelog:
        """The topics of a cluster, which is connected to only when it is needed; see ``ChangelogBackend``."""
        from forebay_changelog.kafka.changelog import KafkaChangelog

        return KafkaChangelog(url)


BACKEND: ChangelogBackend = KafkaBackend()
