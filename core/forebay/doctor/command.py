"""``forebay doctor``: check this machine, the changelog and the processes, each finding with its remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from forebay.cli import FILE, worker_settings
from forebay.client.command_target import Server, token_of
from forebay.console.findings import gravest_first
from forebay.doctor.changelog import check_changelog, log_directory
from forebay.doctor.check import Check, of_error
from forebay.doctor.machine import (
    check_accepted_tokens,
    check_disk,
    check_java,
    check_open_files,
    check_sent_token,
    check_versions,
)
from forebay.doctor.processes import check_processes
from forebay.errors import TopologyError
from forebay.file_access import denial
from forebay.output import Output, json_output
from forebay.topology import Topology
from forebay.topology_file import load_topology

_STYLES = {"error": "red", "warning": "yellow"}


@click.command()
@worker_settings("topology", "changelog", "state_dir", "auth_tokens_file", optional=True)
@click.option(
    "--url",
    "urls",
    multiple=True,
    envvar="FOREBAY_URL",
    show_envvar=True,
    help="A router or worker to check; repeat it for several. A router's workers are checked too.",
)
@click.option("--token-file", type=FILE, metavar="FILE", help="File with the token to send.")
@json_output
def doctor(
    topology: Path | None,
    changelog: str | None,
    state_dir: Path | None,
    auth_tokens_file: Path | None,
    urls: Sequence[str],
    token_file: Path | None,
    output: Output,
) -> None:
    """Check what is given, and this machine, and print what is wrong with its remedy.

    Exit status 1 if there is an error; warnings alone end with 0.
    """
    checks = [check_versions(), check_java()]
    loaded = None
    if topology is not None:
        loaded, check = _load(topology)
        checks.append(check)
    checks.append(check_open_files(loaded))
    checks += _of_paths(changelog, state_dir, auth_tokens_file, token_file)
    if changelog is not None and not _denied(changelog):
        checks.append(check_changelog(changelog, loaded))
    if urls:
        token = token_of(token_file if token_file is None or os.access(token_file, os.R_OK) else None)
        checks += check_processes([Server(url, token) for url in urls], loaded)
    findings = gravest_first(finding for check in checks for finding in check.findings)
    document: dict[str, Any] = {
        "checks": [check.document() for check in checks],
        "errors": sum(finding.severity == "error" for finding in findings),
        "warnings": sum(finding.severity == "warning" for finding in findings),
    }
    output.show(document, *(line for check in checks for line in _lines(check)))
    if document["errors"]:
        sys.exit(1)


def _load(path: Path) -> tuple[Topology | None, Check]:
    try:
        loaded = load_topology(path)
    except TopologyError as error:
        remedy = "Correct the file." if os.path.exists(path) else "Name one that exists with --topology."
        return None, Check("topology", str(path), (of_error("topology-unusable", error, remedy),))
    return loaded, Check("topology", f"{path}, {loaded.application_id!r}, fingerprint {loaded.fingerprint}")


def _denied(changelog: str) -> bool:
    """Whether this user may not use its directory, which the check of that says."""
    directory = log_directory(changelog)
    return directory is not None and denial(directory) is not None


def _of_paths(
    changelog: str | None, state_dir: Path | None, auth_tokens_file: Path | None, token_file: Path | None
) -> Iterator[Check]:
    if state_dir is not None:
        yield check_disk("state directory", state_dir)
    if changelog is not None and (directory := log_directory(changelog)) is not None:
        yield check_disk("changelog directory", directory)
    if auth_tokens_file is not None:
        yield check_accepted_tokens(auth_tokens_file)
    if token_file is not None:
        yield check_sent_token(token_file)


def _lines(check: Check) -> Iterator[Text]:
    yield Text.assemble(("ok   " if not check.findings else "     "), check.name, ": ", check.detail)
    for finding in gravest_first(check.findings):
        severity = (f"  {finding.severity}: ", _STYLES[finding.severity])
        yield Text.assemble(severity, f"{finding.detail} {finding.remedy}")
