"""Each setting of each tier, given another value than its default, has an effect: a case for each in the table.

What a setting does is tested beside the class that does it. Here it is only shown to arrive there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import forebay_router.command
import forebay_worker.command
from examples.ports import free_ports
from forebay.authentication import make_authenticator
from forebay.clock import boot_ms
from forebay.codecs.values import VALUE_CODECS
from forebay.errors import Forbidden, Overloaded, SchemaUnavailable, SettingError, TopicMissing
from forebay.lag import UNKNOWN_LAG, Lag, Tolerance
from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings, Tier, WorkerSettings, settings_for
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import ClusterMap, Generation, HostInfo, StreamsMetadata
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology_file import load_topology
from forebay.wire.parameters import ReadParameters
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_router.cluster.worker_view import Report, WorkerView
from forebay_router.router import Router
from forebay_web.limits import Limit, Limits, Peer
from forebay_web.processes.process_slot import SINGLE_PROCESS
from forebay_web.tickets import verified
from forebay_worker.app import _wait_ms
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.state import layout
from forebay_worker.state.relocate import StateMisplaced
from forebay_worker.worker import Worker
from tests.end_to_end.test_tls import Authority
from tests.support.cluster import Cluster, free_port, wait_until
from tests.support.installed import install_authenticator
from tests.support.issuer import Issuer
from tests.support.schema_registry import SchemaRegistry
from tests.support.tokens import header_of, token_of

STORE = "counts_by_customer"
TOPOLOGY = f"""
application_id = "test"

[[subtopology]]
name = "all"
partitions = 2

[[subtopology.store]]
name = "{STORE}"
"""
VALUES = {b"k1": b'"v"'}
KEY = f"/v1/stores/{STORE}/keys/k1"
ORIGIN = "https://a.example"
ISSUER = "https://issuer.example"
TICKET_KEY = "k" * 40
MEBIBYTE = 1 << 20
HOST = HostInfo("here", 8080)


class Stage:
    """Three workers, each with a router, whose settings differ from the defaults, and where they are.

    ``tokens`` demands tokens, and listens on Unix sockets too. ``encrypted`` speaks HTTPS and sits behind a proxy.
    ``several`` consists of several processes, and has an authenticator of its own.
    """

    def __init__(self, directory: Path, ends: contextlib.ExitStack) -> None:
        self.directory, self._ends = directory, ends
        self.address: dict[tuple[str, Tier], str] = {}
        self.http: dict[str, httpx.Client] = {}
        self.authority = Authority(directory / "authority")
        self._start_tokens()
        self._start_encrypted()
        self._start_several()
        for (name, tier), address in self.address.items():
            wait_until(
                lambda name=name, tier=tier: self.is_ready(name, tier), f"readiness of {name} at {address}", 40
            )

    def get(self, name: str, tier: Tier, path: str, **headers: str) -> httpx.Response:
        return self.http[name].get(self.url(name, tier) + path, headers=headers)

    def url(self, name: str, tier: Tier) -> str:
        return f"{'https' if name == 'encrypted' else 'http'}://{self.address[name, tier]}"

    def is_ready(self, name: str, tier: Tier) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.get(name, tier, "/readyz").status_code == 200
        return False

    def log(self, name: str, tier: Tier) -> str:
        files = (self.directory / name).glob("state-0.log" if tier == "worker" else "router-0.log")
        return "".join(path.read_text() for path in files)

    def socket_path(self, tier: Tier) -> Path:
        return self.directory / f"{tier}.sock"

    def _cluster(self, name: str) -> Cluster:
        (self.directory / name).mkdir()
        cluster = Cluster(self.directory / name, TOPOLOGY)
        self._ends.callback(cluster.stop)
        cluster.put(STORE, VALUES)
        return cluster

    def _client(self, name: str, **options: Any) -> None:
        self.http[name] = self._ends.enter_context(httpx.Client(timeout=10, trust_env=False, **options))

    def _start_tokens(self) -> None:
        cluster, port = self._cluster("tokens"), free_port()
        self._client("tokens", headers={"authorization": header_of("client")})
        (self.directory / "accepted").write_text(f"client {token_of('client')}\nrouter {token_of('router')}\n")
        (self.directory / "to-workers").write_text(token_of("router"))
        (self.directory / "ticket-key").write_text(TICKET_KEY)
        files = (
            "--auth-tokens-file",
            f"{self.directory}/accepted",
            "--ticket-key-file",
            f"{self.directory}/ticket-key",
        )
        web = ("--allowed-hosts", "mine.example", "--cors-allow-origins", ORIGIN, "--max-connections", "40")
        self.issuer = self._ends.enter_context(Issuer({}, audience=STORE))
        issued = ("--auth-jwt-issuer", ISSUER, "--auth-jwt-audience", STORE)
        issued = (*issued, "--auth-jwks-url", f"{self.issuer.url}/jwks")
        both = (*files, *web, *issued, "--socket-group", str(another_group()))
        stray = self.directory / "tokens" / "state-0" / "test" / layout.store_path(TaskId(0, 0), "stray")
        stray.mkdir(parents=True)
        own = (
            "--advertise",
            f"localhost:{port}",
            "--rack",
            "mine",
            "--group",
            f"sqlite:///{self.directory}/mine.db",
        )
        few = ("--state-cleanup-delay-ms", "0", "--rocksdb-block-cache-bytes", str(9 * MEBIBYTE))
        worker = f"127.0.0.1:{port}"
        listen = ("--listen", f"{worker},unix:{self.socket_path('worker')}")
        cluster.start_worker(worker, *both, *own, *few, *listen, ready=False)
        router = f"127.0.0.1:{free_port()}"
        listen = ("--listen", f"{router},unix:{self.socket_path('router')}")
        token = ("--worker-token-file", f"{self.directory}/to-workers")
        cluster.launch_router(*both, *token, *listen)
        cluster.launch_router(*token, "--worker-token-networks", "10.0.0.0/8", "--seeds", worker)
        self.address["tokens", "worker"], self.address["tokens", "router"] = worker, router

    def _start_encrypted(self) -> None:
        cluster, port = self._cluster("encrypted"), free_port()
        self._client("encrypted", verify=ssl.create_default_context(cafile=self.authority.file))
        both = (*self.authority.options("localhost", "127.0.0.1"), "--trusted-proxies", "127.0.0.0/8")
        both = (*both, "--log-format", "json", "--max-event-streams", "16")
        worker = f"127.0.0.1:{port}"
        cluster.start_worker(worker, *both, "--advertise", f"localhost:{port}", ready=False)
        authority = ("--worker-ca-file", str(self.authority.file), "--seeds", f"localhost:{port}")
        router = cluster.launch_router(*both, *authority)
        self.address["encrypted", "worker"], self.address["encrypted", "router"] = worker, router

    def _start_several(self) -> None:
        cluster = self._cluster("several")
        self._client("several", headers={"authorization": f"Bearer {STORE}"})
        (self.directory / "to-several").write_text(STORE)
        both = ("--processes", "2", "--authenticator", "by-store", "--log-level", "error")
        worker = f"127.0.0.1:{successive_port()}"
        cluster.start_worker(worker, *both, "--num-standby-replicas", "0", ready=False)
        router = cluster.launch_router(*both, "--worker-token-file", f"{self.directory}/to-several")
        self.address["several", "worker"], self.address["several", "router"] = worker, router


def another_group() -> int:
    """A group that this process may give a file to, and that is not its own."""
    groups = [group for group in os.getgroups() if group != os.getgid()]
    return 1 if os.geteuid() == 0 else groups[0] if groups else os.getgid()


def successive_port() -> int:
    """A free port, the one after which is free too."""
    first, second = free_ports(2)
    while second != first + 1:
        first, second = second, *free_ports(1)
    return first


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("settings")
    install_authenticator(directory)
    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as ends:
        patched.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
        yield Stage(directory, ends)


class Built:
    """Workers and routers that the real wiring makes of settings, in this process; none is started."""

    def __init__(self, directory: Path, ends: contextlib.ExitStack) -> None:
        self.directory = directory
        self._ends = ends
        (directory / "topology.toml").write_text(TOPOLOGY)

    def worker_settings(self, **changed: Any) -> WorkerSettings:
        flags = {"topology": self.directory / "topology.toml", "changelog": f"sqlite:///{self.directory}/log"}
        flags |= {"state_dir": self.directory / "state", "listen": f"127.0.0.1:{free_port()}", **changed}
        return WorkerSettings(**load_settings("worker", {name: str(value) for name, value in flags.items()}, {}))

    def router_settings(self, **changed: Any) -> RouterSettings:
        flags = {"seeds": "here:1", "listen": f"127.0.0.1:{free_port()}", **changed}
        return RouterSettings(**load_settings("router", {name: str(value) for name, value in flags.items()}, {}))

    def worker(self, **changed: Any) -> Worker:
        settings = self.worker_settings(**changed)
        worker = Worker(settings, HOST, Limits(settings))
        self._ends.callback(worker.stop)
        return worker

    def router(self, **changed: Any) -> Router:
        return Router(self.router_settings(**changed))

    def served(self, tier: Tier, **changed: Any) -> dict[str, Any]:
        """What a tier's command hands to the server, by name."""
        taken: dict[str, Any] = {}
        command: Any = {"worker": forebay_worker.command, "router": forebay_router.command}[tier]
        settings = self.worker_settings(**changed) if tier == "worker" else self.router_settings(**changed)
        interval_s = sys.getswitchinterval()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(command, "serve", lambda start, listeners, limits, **named: taken.update(named))
            command.run(settings, SINGLE_PROCESS)
        sys.setswitchinterval(interval_s)
        return taken


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Built]:
    with contextlib.ExitStack() as ends:
        yield Built(tmp_path, ends)


Shows = Callable[[Stage, Built], None]
"""Asserts a setting's effect."""


def is_full_at(most: int, limit: Limit, named: str, unit: int = 1) -> None:
    """As many others may hold as the setting says, and the refusal names it."""
    for number in range(most):
        limit.held_by(Peer(str(number)), unit)
    with pytest.raises(Overloaded, match=named):
        limit.held_by(Peer("another"), unit)


def limits_of(tier: Tier, built: Built, **changed: int) -> Any:
    return (built.worker(**changed) if tier == "worker" else built.router(**changed)).limits


def answers(tier: Tier, stage: Stage, _: Built) -> None:
    for name in ("tokens", "encrypted"):
        wait_until(lambda name=name: stage.get(name, tier, KEY).status_code == 200, f"an answer of {name}")


def listens_on_unix_socket(tier: Tier, stage: Stage, _: Built) -> None:
    transport = httpx.HTTPTransport(uds=str(stage.socket_path(tier)))
    with httpx.Client(transport=transport, base_url="http://localhost") as http:
        assert http.get("/livez").status_code == 200


def gives_its_socket_to_the_group(tier: Tier, stage: Stage, _: Built) -> None:
    if another_group() == os.getgid():
        pytest.skip("this user has no second group to give a socket to")
    assert stage.socket_path(tier).stat().st_gid == another_group()


def is_full_of_requests(tier: Tier, _: Stage, built: Built) -> None:
    limits = limits_of(tier, built, max_in_flight=7)
    is_full_at(7, limits.requests, r"7 requests .*max_in_flight")
    is_full_at(7, limits.waiting, r"7 reads already wait .*max_in_flight")


def is_full_of_memory(tier: Tier, _: Stage, built: Built) -> None:
    limits = limits_of(tier, built, request_memory_bytes=16 * MEBIBYTE)
    is_full_at(16, limits.memory, "hold 16 MB .*request_memory_bytes", MEBIBYTE)


def closes_connections(tier: Tier, stage: Stage, _: Built) -> None:
    host, port = stage.address["tokens", tier].split(":")
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(45)]
        for connection in connections:
            connection.setblocking(False)
        wait_until(lambda: any(map(is_closed, connections)), "the end of connections beyond the limit")


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextlib.contextmanager
def streams(tier: Tier, stage: Stage, client: str, most: int) -> Iterator[int]:
    """How many streams of changes a client behind the proxy is given, up to a number."""
    with contextlib.ExitStack() as opened:
        for number in range(most):
            url, headers = f"{stage.url('encrypted', tier)}{KEY}/changes", {"x-forwarded-for": client}
            stream = opened.enter_context(stage.http["encrypted"].stream("GET", url, headers=headers))
            if stream.status_code != 200:
                yield number
                return
        yield most


def limits_streams(tier: Tier, stage: Stage, _: Built) -> None:
    """One client gets all but an eighth of them; whom the proxy names is a client."""
    with streams(tier, stage, "203.0.113.1", 20) as first, streams(tier, stage, "203.0.113.2", 1) as second:
        assert (first, second) == (14, 1)


def minds_hosts(tier: Tier, stage: Stage, _: Built) -> None:
    for path in (KEY, "/v1/stores"):
        assert stage.get("tokens", tier, path, host="mine.example").status_code == 200
        assert stage.get("tokens", tier, path, host="other.example").status_code == 400


def lets_origins_read(tier: Tier, stage: Stage, _: Built) -> None:
    for path in (KEY, "/v1/stores"):
        answer = stage.get("tokens", tier, path, origin=ORIGIN)
        assert answer.headers["access-control-allow-origin"] == ORIGIN


def speaks_https(tier: Tier, stage: Stage, _: Built) -> None:
    assert stage.get("encrypted", tier, "/livez").status_code == 200


def demands_tokens(tier: Tier, stage: Stage, _: Built) -> None:
    for path in (KEY, "/v1/stores"):
        assert stage.get("tokens", tier, path).status_code == 200
        assert stage.get("tokens", tier, path, authorization="").status_code == 401


def accepts_an_issuers_tokens(tier: Tier, stage: Stage, _: Built) -> None:
    """Its keys, which sign for whoever it says to be, are only where the settings say."""
    wrong = ({"iss": stage.issuer.url}, {"iss": ISSUER, "aud": "another"})
    for claims, status in (({"iss": ISSUER}, 200), *((claims, 401) for claims in wrong)):
        token = stage.issuer.token("ann", **claims)
        assert stage.get("tokens", tier, KEY, authorization=f"Bearer {token}").status_code == status


def holds_to_grants(tier: Tier, stage: Stage, built: Built) -> None:
    """What is granted to nobody is allowed to nobody, though their token is known."""
    (stage.directory / "nothing").write_text("")
    given = {"auth_tokens_file": f"{stage.directory}/accepted", "grants_file": f"{stage.directory}/nothing"}
    settings = built.worker_settings(**given) if tier == "worker" else built.router_settings(**given)
    authenticator = make_authenticator(settings)
    assert authenticator is not None
    with pytest.raises(Forbidden):
        authenticator.authenticate("GET", KEY, header_of("client").encode())


def asks_the_authenticator(tier: Tier, stage: Stage, _: Built) -> None:
    for path in (KEY, f"/v1/stores/{STORE}"):
        # A worker's other process may have the key.
        assert stage.get("several", tier, path).status_code in (200, 421)
        assert stage.get("several", tier, path, authorization="Bearer other").status_code == 403


def signs_tickets_with_the_key(tier: Tier, stage: Stage, _: Built) -> None:
    issued = stage.http["tokens"].post(f"{stage.url('tokens', tier)}/v1/tickets", json={"store": STORE})
    ticket = issued.json()["ticket"]
    # Why not only by the other tier: processes that tests fork have the same key of their own.
    assert verified(ticket, TICKET_KEY.encode()).store == STORE
    other: Tier = "router" if tier == "worker" else "worker"
    url = f"{stage.url('tokens', other)}{KEY}/changes"
    with httpx.stream("GET", url, params={"ticket": ticket}) as stream:
        assert stream.status_code == 200


def may_be_anonymous(tier: Tier, _: Stage, built: Built) -> None:
    make: Any = built.worker_settings if tier == "worker" else built.router_settings
    with pytest.raises(SettingError, match="--allow-anonymous"):
        make(listen="0.0.0.0:1")
    assert make(listen="0.0.0.0:1", allow_anonymous=True)


def logs_errors_only(tier: Tier, stage: Stage, _: Built) -> None:
    assert "INFO" in stage.log("tokens", tier)
    assert "INFO" not in stage.log("several", tier)


def logs_json(tier: Tier, stage: Stage, _: Built) -> None:
    lines = stage.log("encrypted", tier).splitlines()
    assert all(json.loads(line)["message"] for line in lines)
    assert lines


def drains(tier: Tier, _: Stage, built: Built) -> None:
    assert built.served(tier, drain_ms=77)["drain_ms"] == 77


def ends_in_time(tier: Tier, _: Stage, built: Built) -> None:
    assert built.served(tier, shutdown_timeout_ms=7_777)["shutdown_timeout_ms"] == 7_777


BOTH: dict[str, Callable[[Tier, Stage, Built], None]] = {
    "listen": listens_on_unix_socket,
    "socket_group": gives_its_socket_to_the_group,
    "max_in_flight": is_full_of_requests,
    "request_memory_bytes": is_full_of_memory,
    "max_connections": closes_connections,
    "max_event_streams": limits_streams,
    "trusted_proxies": limits_streams,
    "drain_ms": drains,
    "shutdown_timeout_ms": ends_in_time,
    "allowed_hosts": minds_hosts,
    "cors_allow_origins": lets_origins_read,
    "tls_certificate_file": speaks_https,
    "tls_key_file": speaks_https,
    "auth_tokens_file": demands_tokens,
    "auth_jwt_issuer": accepts_an_issuers_tokens,
    "auth_jwt_audience": accepts_an_issuers_tokens,
    "auth_jwks_url": accepts_an_issuers_tokens,
    "grants_file": holds_to_grants,
    "authenticator": asks_the_authenticator,
    "ticket_key_file": signs_tickets_with_the_key,
    "allow_anonymous": may_be_anonymous,
    "log_level": logs_errors_only,
    "log_format": logs_json,
}


def status(stage: Stage, name: str, tier: Tier) -> Any:
    return stage.get(name, tier, "/v1/status").json()


def has_its_own_group(stage: Stage, _: Built) -> None:
    assert (stage.directory / "mine.db").exists()
    assert not (stage.directory / "tokens" / "log" / "group.db").exists()


def has_two_processes(stage: Stage, _: Built) -> None:
    host, port = stage.address["several", "worker"].split(":")
    second = stage.http["several"].get(f"http://{host}:{int(port) + 1}/v1/status")
    assert second.json()["process_id"] != status(stage, "several", "worker")["process_id"]


def advertises(stage: Stage, _: Built) -> None:
    assert status(stage, "tokens", "worker")["host"].startswith("localhost:")


def is_in_its_rack(stage: Stage, built: Built) -> None:
    assert status(stage, "tokens", "worker")["rack"] == "mine"
    assert built.worker(rack="mine")._subscription().rack == "mine"


def follows_the_policy(_: Stage, built: Built) -> None:
    policy = {"num_standby_replicas": 3, "acceptable_recovery_lag": 77, "max_warmup_replicas": 5}
    worker: Any = built.worker(**policy)
    assert worker.membership._leader.policy == AssignmentPolicy(**policy)
    said = worker.status([])
    assert (said.num_standby_replicas, said.acceptable_recovery_lag) == (3, 77)


def has_no_standbys(stage: Stage, built: Built) -> None:
    follows_the_policy(stage, built)
    rows = stage.get("several", "router", "/v1/lags").json()["lags"]
    assert [row["role"] for row in rows] == ["active", "active"]


def keeps_the_groups_times(_: Stage, built: Built) -> None:
    times = {"session_timeout_ms": 301, "standby_rebuild_delay_ms": 302, "initial_rebalance_delay_ms": 303}
    worker: Any = built.worker(**times, probing_rebalance_interval_ms=304)
    expected = GroupTimeouts(**times, probing_rebalance_interval_ms=304)
    assert worker.membership._times == expected
    assert worker.membership.member._times == expected


def gives_its_place_away(_: Stage, built: Built) -> None:
    monitor = built.worker(standby_rebuild_delay_ms=302)._health_monitor
    assert monitor.health("the disk is full", 0) is MemberHealth.DEGRADED
    assert monitor.health("the disk is full", 303) is MemberHealth.EVICTED


def says_that_it_leaves_for_good(_: Stage, built: Built) -> None:
    assert not built.worker(returns=False)._subscription().returns


def creates_no_topics(_: Stage, built: Built) -> None:
    with pytest.raises(TopicMissing):
        built.worker(create_topics=False)


def brings_replicas_forward(_: Stage, built: Built) -> None:
    tasks: Any = built.worker(apply_records_per_second=78, restore_processes=9).tasks
    assert tasks.applier._records_per_second == 78
    assert tasks.bulk_restore._processes == 9


def reads_by_schemas(_: Stage, built: Built) -> None:
    with SchemaRegistry() as registry:
        schema_id = registry.register("s", {"schema": '"int"'})
        worker: Any = built.worker(schema_registry=registry.url)
        assert worker.tasks.bulk_restore._schema_registry == registry.url
        wait_until(lambda: _fault(schema_id) is None, "the schema")


def _fault(schema_id: int) -> object:
    try:
        return VALUE_CODECS["avro"].fault(b"\x00%b\x02" % schema_id.to_bytes(4, "big"))
    except SchemaUnavailable as unavailable:
        return unavailable


def copies_from_others(stage: Stage, built: Built) -> None:
    (stage.directory / "own").write_text(token_of("worker"))
    options = {"snapshot_token_file": str(stage.directory / "own"), "snapshot_ca_file": str(stage.authority.file)}
    copier: Any = built.worker(**options).tasks.bulk_restore._copy.__self__._copy_store.__self__
    assert copier.token().decode() == header_of("worker")
    assert {certificate["serialNumber"] for certificate in copier.authorities.get_ca_certs()}


def saves_snapshots(stage: Stage, built: Built) -> None:
    saver: Any = built.worker(snapshots=f"file://{stage.directory}/kept", snapshot_interval_ms=77_000).saver
    assert saver._repository.url == f"file://{stage.directory}/kept"
    assert saver._interval_ms == 77_000


def gives_copies_at_a_pace(_: Stage, built: Built) -> None:
    assert built.worker(snapshot_bytes_per_second=77).snapshots.pace.bytes_per_second == 77


def writes_offsets(_: Stage, built: Built) -> None:
    worker: Any = built.worker(statestore_checkpoint_interval_ms=77)
    assert worker.tasks._opener.checkpoint_interval_ms == 77


def moves_no_store(_: Stage, built: Built) -> None:
    (built.directory / "state" / "test" / layout.store_path(TaskId(7, 0), STORE)).mkdir(parents=True)
    settings = built.worker_settings()
    SqliteChangelog(built.directory / "log").ensure(load_topology(settings.topology).stores[STORE])
    with pytest.raises(StateMisplaced):
        built.worker(automatic_state_relocation=False)


def deletes_what_the_topology_lacks(stage: Stage, _: Built) -> None:
    stray = stage.directory / "tokens" / "state-0" / "test" / layout.store_path(TaskId(0, 0), "stray")
    wait_until(lambda: not stray.exists(), "the deletion of a store that is in no topology")


def is_held_to_the_ceiling(_: Stage, built: Built) -> None:
    worker = built.worker(record_lag_ceiling=1, time_lag_ceiling_ms=2, age_ceiling_ms=3)
    held = worker.admission.tolerance(worker.topology.stores[STORE], ReadParameters())
    assert held == Tolerance(1, 2, 3)
    ceiling = worker.status([]).ceiling
    assert (ceiling.max_record_lag, ceiling.max_time_lag_ms, ceiling.max_age_ms) == (1, 2, 3)


def has_a_block_cache(stage: Stage, _: Built) -> None:
    logs = [
        path.read_text() for path in (stage.directory / "tokens" / "state-0" / "test").glob("0_*/rocksdb/*/LOG")
    ]
    assert logs
    assert all(f"capacity : {9 * MEBIBYTE}\n" in log for log in logs)


def has_write_buffers(_: Stage, built: Built) -> None:
    worker: Any = built.worker(rocksdb_write_buffer_bytes=9 * MEBIBYTE)
    assert worker.memory._write_buffers.get_buffer_size() == 9 * MEBIBYTE


def ends_later_pages_in_time(_: Stage, built: Built) -> None:
    worker = built.worker(request_timeout_ms=300)
    # Of the time, a part is left for the answer.
    assert 200 < _wait_ms(worker, ReadParameters(cursor="c"), {}) < 300


WORKER: dict[str, Shows | str] = {
    **{name: functools.partial(shows, "worker") for name, shows in BOTH.items()},
    **dict.fromkeys(("topology", "changelog", "state_dir"), functools.partial(answers, "worker")),
    "group": has_its_own_group,
    "processes": has_two_processes,
    "advertise": advertises,
    "rack": is_in_its_rack,
    "num_standby_replicas": has_no_standbys,
    "acceptable_recovery_lag": follows_the_policy,
    "max_warmup_replicas": follows_the_policy,
    "session_timeout_ms": keeps_the_groups_times,
    "standby_rebuild_delay_ms": gives_its_place_away,
    "returns": says_that_it_leaves_for_good,
    "initial_rebalance_delay_ms": keeps_the_groups_times,
    "probing_rebalance_interval_ms": keeps_the_groups_times,
    "create_topics": creates_no_topics,
    "apply_records_per_second": brings_replicas_forward,
    "restore_processes": brings_replicas_forward,
    "schema_registry": reads_by_schemas,
    "snapshots": saves_snapshots,
    "snapshot_interval_ms": saves_snapshots,
    "snapshot_token_file": copies_from_others,
    "snapshot_ca_file": copies_from_others,
    "snapshot_bytes_per_second": gives_copies_at_a_pace,
    "statestore_checkpoint_interval_ms": writes_offsets,
    "automatic_state_relocation": moves_no_store,
    "state_cleanup_delay_ms": deletes_what_the_topology_lacks,
    "record_lag_ceiling": is_held_to_the_ceiling,
    "time_lag_ceiling_ms": is_held_to_the_ceiling,
    "age_ceiling_ms": is_held_to_the_ceiling,
    "rocksdb_block_cache_bytes": has_a_block_cache,
    "rocksdb_write_buffer_bytes": has_write_buffers,
    "request_timeout_ms": ends_later_pages_in_time,
}


def holder(router: Router, view: WorkerView) -> Any:
    """The one holder of a partition that a router knows of."""
    active = StreamsMetadata(view.host, active_topic_partitions=frozenset({TopicPartition("t", 0)}))
    router.cluster.metadata.on_change(ClusterMap(Generation(1, 1), (active,)))
    router.cluster.workers[view.host] = view
    spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
    [found] = router.cluster.holders(spec, 0, lambda host: 0)
    return found


def serves_its_application(_: Stage, built: Built) -> None:
    assert built.router(application_id="mine").identity().application_id == "mine"


def has_router_processes(stage: Stage, _: Built) -> None:
    assert len(status(stage, "several", "router")["processes"]) == 2


def prefers_its_rack(_: Stage, built: Built) -> None:
    assert holder(built.router(rack="mine"), WorkerView(HOST, live=True, rack="mine")).near


def prefers_its_own_host(_: Stage, built: Built) -> None:
    assert holder(built.router(own_host=HOST.host), WorkerView(HOST, live=True)).own_host


def trusts_reports_for_so_long(_: Stage, built: Built) -> None:
    view = WorkerView(HOST, live=True, replicas={("s", 0): Report("active", Lag(3, 5, 7), boot_ms() - 60_000)})
    assert holder(built.router(lag_report_max_age_ms=600_000), view).lag == Lag(3, 5, 7)
    assert holder(built.router(), view).lag == UNKNOWN_LAG


def polls_so_often(_: Stage, built: Built) -> None:
    assert built.router(worker_poll_interval_ms=7_000).discovery._pause_s() == 7


def gives_requests_so_long(_: Stage, built: Built) -> None:
    assert built.router(request_timeout_ms=77).timeout_ms(ReadParameters()) == 77


def spares_a_full_worker(_: Stage, built: Built) -> None:
    router = built.router(max_in_flight_per_worker=1)
    assert not router.full(HOST)
    permit = router.pool[HOST].permit()
    assert router.full(HOST)
    permit.release()


def reads_with_its_token(stage: Stage, _: Built) -> None:
    assert stage.get("tokens", "router", KEY).status_code == 200


def keeps_its_token_from_others(stage: Stage, _: Built) -> None:
    log = stage.directory / "tokens" / "router-1.log"
    wait_until(lambda: "not in worker_token_networks" in log.read_text(), "a worker that gets no token")


def reads_over_https(stage: Stage, _: Built) -> None:
    assert stage.get("encrypted", "router", KEY).status_code == 200


ROUTER: dict[str, Shows | str] = {
    **{name: functools.partial(shows, "router") for name, shows in BOTH.items()},
    "seeds": functools.partial(answers, "router"),
    "application_id": serves_its_application,
    "processes": has_router_processes,
    "rack": prefers_its_rack,
    "own_host": prefers_its_own_host,
    "request_timeout_ms": gives_requests_so_long,
    "max_in_flight_per_worker": spares_a_full_worker,
    "worker_poll_interval_ms": polls_so_often,
    "lag_report_max_age_ms": trusts_reports_for_so_long,
    "worker_token_file": reads_with_its_token,
    "worker_token_networks": keeps_its_token_from_others,
    "worker_ca_file": reads_over_https,
}
CASES: dict[Tier, dict[str, Shows | str]] = {"worker": WORKER, "router": ROUTER}


@pytest.mark.parametrize("tier", CASES)
def test_every_setting_has_a_case(tier: Tier) -> None:
    assert {setting.name for setting in settings_for(tier)} == CASES[tier].keys()


@pytest.mark.parametrize(
    ("tier", "name"),
    [(tier, name) for tier, cases in CASES.items() for name, shows in cases.items() if callable(shows)],
)
def test_a_setting_has_an_effect(stage: Stage, built: Built, tier: Tier, name: str) -> None:
    shows = CASES[tier][name]
    assert callable(shows)
    shows(stage, built)
