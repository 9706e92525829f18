"""The checks of running processes: whether they answer, for which topology, by which clock, and what they find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from forebay import __version__
from forebay.answer_schemas.reading import read_values
from forebay.client.command_target import Server
from forebay.clock import epoch_ms
from forebay.console.findings import Finding
from forebay.doctor.check import Check, of_error
from forebay.durations import duration
from forebay.errors import ForebayError
from forebay.topology import Topology

_MOST_SKEW_MS = 250.0
"""Ages compare clocks of several machines."""
_REACH = "Start it, and let this machine reach it."


class Answers(NamedTuple):
    """What one process says, and by how much its clock is ahead, with how sure that is, in milliseconds."""

    status: dict[str, Any]
    health: dict[str, Any]
    version: str
    ahead_ms: float
    unsure_ms: float


def check_processes(servers: list[Server], topology: Topology | None) -> Iterator[Check]:
    """The checks of servers, and of the workers that routers among them know."""
    checked: set[str] = set()
    pending = list(servers)
    while pending:
        server = pending.pop(0)
        if server.url in checked:
            continue
        checked.add(server.url)
        try:
            answers = _ask(server)
        except ForebayError as error:
            finding = of_error("process-unreachable", error, _REACH)
            if server not in servers:
                # The message's remedy is another --url, which did not name this one.
                finding = replace(finding, remedy=_REACH)
            yield Check(server.url, "does not answer", (finding,))
            continue
        yield process_verdict(server.url, answers, topology)
        scheme = urlsplit(server.url).scheme
        # One that does not answer is a finding of the router already.
        workers = [worker for worker in answers.status.get("workers", []) if worker["live"]]
        pending += [Server(f"{scheme}://{worker['host']}", server.token) for worker in workers]


def _ask(server: Server) -> Answers:
    status = server.described("/v1/status")
    sent_ms = epoch_ms()
    health = server.described("/v1/health")
    answered_ms = epoch_ms()
    version = server.described("/openapi.json")["info"]["version"]
    ahead_ms = health["now_ms"] - (sent_ms + answered_ms) / 2
    return Answers(status, health, version, ahead_ms, (answered_ms - sent_ms) / 2)


def process_verdict(url: str, answers: Answers, topology: Topology | None) -> Check:
    """The check of one process that answers."""
    status, health = answers.status, answers.health
    application = health["application_id"]
    findings = read_values(health["findings"], list[Finding])
    ahead_ms = answers.ahead_ms
    if abs(ahead_ms) > _MOST_SKEW_MS + answers.unsure_ms:
        direction = "ahead of" if ahead_ms > 0 else "behind"
        detail = f"The clock of {url} is {duration(abs(ahead_ms))} {direction} this machine's, so ages are wrong."
        findings.append(Finding("clock-skew", "warning", detail, "Synchronise both clocks, as with chrony."))
    if answers.version != __version__:
        detail = f"{url} is forebay {answers.version}, this is {__version__}."
        remedy = "Finish the upgrade, or run this command with the version of the processes."
        findings.append(Finding("version-differs", "warning", detail, remedy))
    if topology is not None:
        findings += _of_topology(url, application, status, topology)
    detail = f"{status['tier']} of {application!r}, {status['state']}, forebay {answers.version}"
    return Check(url, detail, tuple(findings))


def _of_topology(
    url: str, application: str | None, status: dict[str, Any], topology: Topology
) -> Iterator[Finding]:
    if application not in (None, topology.application_id):
        detail = (
            f"{url} serves the application {application!r}, the topology is that of {topology.application_id!r}."
        )
        yield Finding("application-differs", "error", detail, "Name the right topology, or the right process.")
    elif status.get("topology", topology.fingerprint) != topology.fingerprint:
        detail = f"{url} has the topology {status['topology']}, the file is {topology.fingerprint}."
        remedy = "Restart the workers with the new file; 'forebay topology diff' says what follows."
        yield Finding("topology-differs", "warning", detail, remedy)
