"""The check of the changelog: whether it is reachable, and its topics fit the topology."""

from __future__ import annotations

from pathlib import Path

from forebay.changelog import Changelog, open_changelog
from forebay.changelog.urls import changelog_directory
from forebay.console.findings import Finding
from forebay.doctor.check import Check, of_error
from forebay.errors import ChangelogUnreachable, ForebayError, TopicMissing
from forebay.file_access import naming_denials
from forebay.output import quantity
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay.topology import Topology

_APPLY = "Run: forebay topology apply"


def check_changelog(url: str, topology: Topology | None) -> Check:
    """Whether the changelog at a URL has what a topology needs."""
    try:
        with naming_denials():
            opened = open_changelog(url, create=False)
    except ForebayError as error:
        return Check("changelog", "cannot be used", (of_error("changelog-unusable", error, _APPLY),))
    if topology is None:
        return Check("changelog", f"{opened.url}, whose topics are not checked without --topology")
    findings: list[Finding] = []
    for spec in topology.stores.values():
        try:
            findings += _of_log(opened, spec)
        except ChangelogUnreachable as error:
            unreachable = of_error("changelog-unreachable", error, "Start the brokers, or correct the URL.")
            return Check("changelog", f"{opened.url} cannot be reached", (unreachable,))
    return Check("changelog", f"{opened.url}, {quantity(len(topology.stores), 'log')}", tuple(findings))


def log_directory(url: str) -> Path | None:
    """Where the changelog at a URL is on this machine; None if elsewhere, or if the URL cannot be used."""
    try:
        return changelog_directory(url)
    except ForebayError:
        return None


def _of_log(opened: Changelog, spec: StoreSpec) -> list[Finding]:
    try:
        opened.ensure(spec, create=False)
    except ChangelogUnreachable:
        raise
    except TopicMissing as error:
        return [of_error("topic-missing", error, _APPLY, "warning", spec.name)]
    except ForebayError as error:
        return [of_error("topic-unsuitable", error, _APPLY, store=spec.name)]
    partitions = [TopicPartition(spec.topic, partition) for partition in range(spec.partitions)]
    known = opened.end_offsets(partitions)
    away = tuple(tp.partition for tp in partitions if tp not in known)
    if not away:
        return []
    detail = f"{len(away)} of {spec.partitions} partitions of {spec.topic!r} cannot be read."
    remedy = "Bring back their brokers or files; 'forebay changelog ls' shows which they are."
    return [Finding("partitions-away", "error", detail, remedy, spec.name, away)]
