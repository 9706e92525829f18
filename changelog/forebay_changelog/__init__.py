"""Changelogs: the logs that hold the truth about every store's content."""

from forebay_changelog.base import Batch, Changelog, Consumer, Heartbeat, ReadFailure, Record, Wake, open_changelog
from forebay_changelog.record_headers import heartbeat_key

__all__ = [
    "Batch",
    "Changelog",
    "Consumer",
    "Heartbeat",
    "ReadFailure",
    "Record",
    "Wake",
    "heartbeat_key",
    "open_changelog",
]
