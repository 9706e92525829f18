"""Changelogs: the logs that hold the truth about every store's content."""

from forebay_changelog.base import Batch, Changelog, Consumer, Heartbeat, ReadFailure, Record
from forebay_changelog.eventfd import Wake
from forebay_changelog.heartbeat_keys import heartbeat_key
from forebay_changelog.urls import open_changelog

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
