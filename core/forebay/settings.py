"""The one list of settings: flags, environment names, defaults, docs and Helm values are made from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from forebay.listen_addresses import ListenAddress
from forebay.streams_metadata import HostInfo

ENVIRONMENT_PREFIX = "FOREBAY_"

Tier = Literal["worker", "router"]
Kind = Literal["text", "path", "address", "addresses", "listeners", "integer", "boolean", "names", "choice"]


@dataclass(frozen=True)
class Setting:
    """One setting: its name (flag ``--name``, environment ``FOREBAY_NAME``), type, default and meaning."""

    name: str
    kind: Kind
    default: Any
    tiers: frozenset[Tier]
    help: str
    required: bool = False
    least: int = 0
    most: int | None = None
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """Its default as an operator would write it, empty if there is none."""
        if self.default in (None, ()):
            return ""
        return ",".join(self.default) if self.kind == "names" else str(self.default)

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def setting(
    help: str, default: Any = None, *, least: int = 0, most: int | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """A member that is a setting. Without a default it is required, unless it may be None."""
    return field(metadata={"help": help, "default": default, "least": least, "most": most, "choices": choices})


_MAX_ANSWER_BYTES = 32 << 20
"""Half of what an answer may take: values may be longer as JSON."""
_PRIVATE_NETWORKS = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1",
    "fc00::/7",
    "fe80::/10",
)


@dataclass(frozen=True, kw_only=True)
class TierSettings:
    """What both tiers have."""

    listen: tuple[ListenAddress, ...] = setting(
        "Where to listen, comma-separated: `HOST:PORT`, or `unix:/PATH` for a Unix socket, which takes no TLS. "
        "`[::]:PORT` alone takes connections of IPv4 as well.",
        "127.0.0.1:8080",
    )
    socket_group: str | None = setting(
        "Group whose members may connect to the Unix sockets, a name or a number. By default it is that of the "
        "process."
    )
    processes: int = setting(
        "Processes, of which each uses one core. Those of a router share its address, and each has its own limits "
        "and connections. Those of a worker are members of the group, each at a port of its own, from that of "
        "`listen` and `advertise` on, and divide the worker's tasks, memory and limits.",
        1,
        least=1,
        most=256,
    )
    rack: str | None = setting(
        "The unit that fails together with this process, such as its zone. A worker's rack is by default the host "
        "that it advertises. Standbys prefer another rack than their active's (KIP-708). A router that has a rack "
        "sends reads with `prefer=any` to workers of the same (KIP-392), as long as one is within the bounds."
    )
    request_timeout_ms: int = setting(
        "Time that a request without `timeout_ms` may take, beside its `wait_ms`.", 1_000, least=1, most=30_000
    )
    max_in_flight: int = setting(
        "Requests in flight above which a process answers 429, and as many reads beside them that wait for their "
        "bounds. Of this and the following limits one client, by token or address, takes all but the last eighth.",
        4_096,
        least=1,
    )
    request_memory_bytes: int = setting(
        "Memory for the bodies, pages and answers of requests in progress, above which a process answers 429.",
        128 << 20,
        least=8 << 20,
    )
    max_connections: int = setting(
        "Connections open at once above which a process closes new ones. It also closes them above three quarters "
        "of the files that it may have open.",
        16_384,
        least=1,
    )
    max_event_streams: int = setting(
        "Event streams open at once above which a process answers 429.", 1_000, least=1
    )
    drain_ms: int = setting("How long listeners stay open after SIGTERM, while not ready.", 5_000)
    shutdown_timeout_ms: int = setting("Longest time from SIGTERM to the process' end.", 25_000, least=1)
    allowed_hosts: tuple[str, ...] = setting(
        "Names by which requests may address the process, or `*` for any. Addresses, names of loopback and the "
        "advertised name are allowed as well. By default any name is, if other machines may reach the process.",
        (),
    )
    trusted_proxies: tuple[str, ...] = setting(
        "Networks of proxies, comma-separated, and `unix` for the Unix sockets: in their requests "
        "`X-Forwarded-For`, or `Forwarded`, names the client that limits count.",
        (),
    )
    cors_allow_origins: tuple[str, ...] = setting("Origins that browsers may read from, or `*`.", ())
    tls_certificate_file: Path | None = setting(
        "PEM file of the certificate, with its chain, by which the listener speaks HTTPS, and nothing else. The "
        "file is read again when it changes."
    )
    tls_key_file: Path | None = setting("PEM file of the certificate's private key, not encrypted.")
    auth_tokens_file: Path | None = setting(
        "File of accepted tokens of at least 16 characters, one per line: `NAME TOKEN` or `NAME sha256:HEX`. The "
        "file is read again when it changes. Without it, `--auth-jwt-issuer` and `--authenticator`, every request "
        "is accepted."
    )
    auth_jwt_issuer: str | None = setting(
        "URL of an issuer whose signed tokens (JWTs) are accepted, as their claim `iss` has it, beside those of a "
        "tokens file. Its keys are found by OpenID Connect's discovery."
    )
    auth_jwt_audience: str | None = setting("Whom the issuer's tokens must be for, by their claim `aud`.")
    auth_jwks_url: str | None = setting("URL of the issuer's keys, if discovery does not find it.")
    grants_file: Path | None = setting(
        "File of grants, tables in TOML that say who may do what with which stores. With it, what is not granted "
        "is not allowed. The file is read again when it changes."
    )
    authenticator: str | None = setting(
        "Name of an entry point in the group `forebay.authenticators` that authenticates requests instead of a "
        "tokens file."
    )
    ticket_key_file: Path | None = setting(
        "File of the one key, of at least 32 characters, that signs tickets for event streams. The file is read "
        "again when it changes. Routers with the same key open each other's tickets. By default each process, or "
        "each router of several, makes a key at its start."
    )
    allow_anonymous: bool = setting(
        "Whether a process that other machines may reach starts without a tokens file and an authenticator.", False
    )
    log_level: str = setting(
        "Least severe level logged: `debug`, `info`, `warning` or `error`.",
        "info",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = setting("Form of log lines: `text` or `json`.", "text", choices=("text", "json"))

    @property
    def max_answer_bytes(self) -> int:
        """Size above which a batch is not answered, but refused with 413: one that no process has room for would
        be refused as if it were worth another try."""
        return min(_MAX_ANSWER_BYTES, self.request_memory_bytes // 2)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(TierSettings):
    """A worker's settings."""

    topology: Path = setting("The topology file.")
    changelog: str = setting("URL of the changelog: `sqlite:///DIR` or `kafka://HOST:PORT,…`.")
    state_dir: Path = setting("Directory of the local state, one per worker.")
    group: str | None = setting(
        "URL of the worker group, `sqlite:///FILE` or `kafka://HOST:PORT,…`. By default it is `group.db` beside "
        "the SQLite changelog, or the Kafka changelog's brokers."
    )
    advertise: HostInfo | None = setting(
        "Address under which others reach this worker. By default it is the first listen address of TCP. If that "
        "is a wildcard such as `0.0.0.0`, it is the machine's name, and a warning at the start says which."
    )
    num_standby_replicas: int = setting("Standbys of each task, on other workers.", 1)
    acceptable_recovery_lag: int = setting(
        "A task counts as caught up if each of its stores is at most this many records behind. An active still "
        "counts as caught up at twice as many, so that a lag near the limit does not move it back and forth.",
        10_000,
    )
    max_warmup_replicas: int = setting("Extra replicas that may warm up at once.", 2, least=1)
    session_timeout_ms: int = setting(
        "A member is alive if it renewed its lease within this time.", 6_000, least=300
    )
    standby_rebuild_delay_ms: int = setting(
        "How long a member must be away before its replicas are rebuilt elsewhere.", 60_000
    )
    returns: bool = setting(
        "Whether the worker comes back after it has left or died. If not, as beside a program that ends, its "
        "place is given to others at once instead of after `standby_rebuild_delay_ms`.",
        True,
    )
    initial_rebalance_delay_ms: int = setting(
        "How long an empty group waits for members before its first assignment.", 3_000
    )
    probing_rebalance_interval_ms: int = setting(
        "How often a Kafka group whose replicas are still moving is rebalanced, in addition to each of its steps.",
        10_000,
        least=100,
    )
    create_topics: bool = setting(
        "Whether workers create missing changelog topics. If not, `forebay topology apply` creates them.", True
    )
    apply_records_per_second: int = setting(
        "Total records applied a second at most, to leave disk and processor time to reads. 0 sets no limit.", 0
    )
    restore_processes: int = setting(
        "Processes that restore replicas that are far behind. With 0 the serving process restores them itself.", 1
    )
    statestore_checkpoint_interval_ms: int = setting(
        "How often offsets are written for stores that manage none, beside after 10,000 records (KIP-116).",
        300_000,
    )
    schema_registry: str | None = setting(
        "URL of the schema registry, for stores of `avro` keys or values: `https://HOST:PORT`, with the "
        "properties of Confluent's Python client as a query or in `?properties=FILE`, such as "
        "`basic.auth.user.info` and `ssl.ca.location`."
    )
    snapshots: str | None = setting(
        "URL of a directory or object store for snapshots of stores: `file:///DIRECTORY`, `s3://BUCKET/PREFIX`, "
        "`gs://` or `abfs://`. Each partition's active saves one every `snapshot_interval_ms`, and a replica that "
        "has little of its log begins with the newest if no other worker gives it a copy."
    )
    snapshot_interval_ms: int = setting("How often a snapshot of each partition is saved.", 3_600_000, least=1_000)
    snapshot_token_file: Path | None = setting(
        "File of the one token by which workers copy each other's stores: the same on all of them, and in no "
        "tokens file. Without it, workers that authenticate their clients give each other nothing, and read their "
        "logs instead. The file is read again when it changes."
    )
    snapshot_ca_file: Path | None = setting(
        "PEM file of the authorities that vouch for the certificates of other workers, which are asked for copies "
        "over HTTPS if this one serves it. By default these are the machine's."
    )
    snapshot_bytes_per_second: int = setting(
        "Total bytes a second at which stores are copied to other workers and saved. 0 sets no limit.",
        0,
    )
    automatic_state_relocation: bool = setting(
        "Whether stores that now belong to another ordinal are moved there at start (KIP-816).", True
    )
    state_cleanup_delay_ms: int = setting(
        "How long the state of a released task, or of a store that left the topology, is kept on disk. It counts "
        "from the release, or from the worker's start if that is later.",
        600_000,
    )
    record_lag_ceiling: int | None = setting(
        "Limit on how many records any answer may be behind, whatever a request or a store tolerates."
    )
    time_lag_ceiling_ms: int | None = setting(
        "Limit on how far any answer may be behind the log, whatever a request or a store tolerates."
    )
    age_ceiling_ms: int | None = setting(
        "Limit on how far any answer may be behind the source, whatever a request or a store tolerates."
    )
    rocksdb_block_cache_bytes: int = setting(
        "Block cache shared by all stores of the process.", 256 << 20, least=1 << 20
    )
    rocksdb_write_buffer_bytes: int = setting(
        "Memory for writes not yet flushed, shared by all stores of the process.", 256 << 20, least=1 << 20
    )


@dataclass(frozen=True, kw_only=True)
class RouterSettings(TierSettings):
    """A router's settings."""

    seeds: tuple[HostInfo, ...] = setting(
        "Workers from which to learn of the others, comma-separated. A name stands for every address that it "
        "resolves to, looked up every 5 s."
    )
    application_id: str | None = setting(
        "The application whose workers are asked. By default it is that of the seeds, if all belong to one."
    )
    own_host: str | None = setting(
        "The host that workers on this router's machine advertise. Reads with `prefer=any` go to a worker there "
        "before the others of the rack, as long as one is within the bounds."
    )
    max_in_flight_per_worker: int = setting(
        "Requests in flight at one worker above which a router asks another, and answers 429 if all are full. "
        "Each of the router's processes counts its own.",
        1_024,
        least=1,
    )
    worker_poll_interval_ms: int = setting(
        "Pause between polls of a worker's status. It is longer if polling all would take over 3 % of a core.",
        200,
        least=10,
    )
    lag_report_max_age_ms: int = setting(
        "A worker's lag report older than this counts as unknown.", 5_000, least=1
    )
    worker_token_file: Path | None = setting(
        "File of the one token that the router sends to workers. The file is read again when it changes."
    )
    worker_token_networks: tuple[str, ...] = setting(
        "Networks, and names of workers, to which the router's token may go without TLS, comma-separated. By "
        "default these are loopback and the private ones (RFC 1918, RFC 4193, link-local). A worker elsewhere is "
        "not asked.",
        _PRIVATE_NETWORKS,
    )
    worker_ca_file: Path | None = setting(
        "PEM file of the authorities that vouch for the workers' certificates. With it, workers are asked over "
        "HTTPS only. The file is read again when it changes."
    )


_MADE: dict[Tier, type[TierSettings]] = {"worker": WorkerSettings, "router": RouterSettings}
_KINDS: dict[Any, Kind] = {
    str: "text",
    Path: "path",
    HostInfo: "address",
    tuple[HostInfo, ...]: "addresses",
    tuple[ListenAddress, ...]: "listeners",
    int: "integer",
    bool: "boolean",
    tuple[str, ...]: "names",
}


def _settings() -> Iterator[Setting]:
    members = {member.name: member for made in _MADE.values() for member in fields(made)}
    types = {**get_type_hints(WorkerSettings), **get_type_hints(RouterSettings)}
    for name, member in members.items():
        kind = next(kind for type_, kind in _KINDS.items() if types[name] in (type_, type_ | None))
        yield Setting(
            name,
            "choice" if member.metadata["choices"] else kind,
            tiers=frozenset(tier for tier, made in _MADE.items() if name in made.__dataclass_fields__),
            required=member.metadata["default"] is None and NoneType not in get_args(types[name]),
            **member.metadata,
        )


SETTINGS: tuple[Setting, ...] = tuple(sorted(_settings(), key=lambda setting: not setting.required))
"""All settings, those that are required first."""


def settings_for(tier: Tier) -> tuple[Setting, ...]:
    """The settings that a tier has."""
    return tuple(setting for setting in SETTINGS if tier in setting.tiers)
