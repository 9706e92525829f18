"""The one table of settings, from which flags, environment names, defaults and docs are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ENVIRONMENT_PREFIX = "FOREBAY_"

Tier = Literal["worker", "router"]
Kind = Literal["text", "path", "address", "addresses", "listeners", "integer", "boolean", "names", "choice"]

WORKER: frozenset[Tier] = frozenset({"worker"})
ROUTER: frozenset[Tier] = frozenset({"router"})
BOTH: frozenset[Tier] = WORKER | ROUTER


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
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """Its default as an operator would write it, empty if there is none."""
        if self.default in (None, ()):
            return ""
        return ",".join(self.default) if self.kind == "names" else str(self.default)

    @property
    def environment(self) -> str:
        """The environment variable's name."""
        return ENVIRONMENT_PREFIX + self.name.upper()


_LEVELS = ("debug", "info", "warning", "error")

SETTINGS: tuple[Setting, ...] = (
    Setting("topology", "path", None, WORKER, "The topology file.", required=True),
    Setting(
        "changelog",
        "text",
        None,
        WORKER,
        "URL of the changelog: `sqlite:///DIR` or `kafka://HOST:PORT,…`.",
        required=True,
    ),
    Setting("state_dir", "path", None, WORKER, "Directory of the local state, one per worker.", required=True),
    Setting(
        "group",
        "text",
        None,
        WORKER,
        "URL of the worker group, `sqlite:///FILE` or `kafka://HOST:PORT,…`. By default it is `group.db` beside "
        "the SQLite changelog, or the Kafka changelog's brokers.",
    ),
    Setting(
        "seeds",
        "addresses",
        None,
        ROUTER,
        "Workers from which to learn of the others, comma-separated. A name stands for every address that it "
        "resolves to, looked up every 5 s.",
        required=True,
    ),
    Setting(
        "application_id",
        "text",
        None,
        ROUTER,
        "The application whose workers are asked. By default it is that of the seeds, if all belong to one.",
    ),
    Setting(
        "listen",
        "listeners",
        "127.0.0.1:8080",
        BOTH,
        "Where to listen, comma-separated: `HOST:PORT`, or `unix:/PATH` for a Unix socket, which takes no TLS. "
        "`[::]:PORT` alone takes connections of IPv4 as well.",
    ),
    Setting(
        "socket_group",
        "text",
        None,
        BOTH,
        "Group whose members may connect to the Unix sockets, a name or a number. By default it is that of the "
        "process.",
    ),
    Setting(
        "processes",
        "integer",
        1,
        BOTH,
        "Processes, of which each uses one core. Those of a router share its address, and each has its own limits "
        "and connections. Those of a worker are members of the group, each at a port of its own, from that of "
        "`listen` and `advertise` on, and divide the worker's tasks, memory and limits.",
        least=1,
        most=256,
    ),
    Setting(
        "advertise",
        "address",
        None,
        WORKER,
        "Address under which others reach this worker. By default it is the first listen address of TCP. If that "
        "is a wildcard such as `0.0.0.0`, it is the machine's name, and a warning at the start says which.",
    ),
    Setting(
        "rack",
        "text",
        None,
        BOTH,
        "The unit that fails together with this process, such as its zone. A worker's rack is by default the host "
        "that it advertises. Standbys prefer another rack than their active's (KIP-708). A router that has a rack "
        "sends reads with `prefer=any` to workers of the same (KIP-392), as long as one is within the bounds.",
    ),
    Setting(
        "own_host",
        "text",
        None,
        ROUTER,
        "The host that workers on this router's machine advertise. Reads with `prefer=any` go to a worker there "
        "before the others of the rack, as long as one is within the bounds.",
    ),
    Setting("num_standby_replicas", "integer", 1, WORKER, "Standbys of each task, on other workers."),
    Setting(
        "acceptable_recovery_lag",
        "integer",
        10_000,
        WORKER,
        "A task counts as caught up if each of its stores is at most this many records behind. An active still "
        "counts as caught up at twice as many, so that a lag near the limit does not move it back and forth.",
    ),
    Setting("max_warmup_replicas", "integer", 2, WORKER, "Extra replicas that may warm up at once.", least=1),
    Setting(
        "session_timeout_ms",
        "integer",
        6_000,
        WORKER,
        "A member is alive if it renewed its lease within this time.",
        least=300,
    ),
    Setting(
        "standby_rebuild_delay_ms",
        "integer",
        60_000,
        WORKER,
        "How long a member must be away before its replicas are rebuilt elsewhere.",
    ),
    Setting(
        "returns",
        "boolean",
        True,
        WORKER,
        "Whether the worker comes back after it has left or died. If not, as beside a program that ends, its "
        "place is given to others at once instead of after `standby_rebuild_delay_ms`.",
    ),
    Setting(
        "initial_rebalance_delay_ms",
        "integer",
        3_000,
        WORKER,
        "How long an empty group waits for members before its first assignment.",
    ),
    Setting(
        "probing_rebalance_interval_ms",
        "integer",
        10_000,
        WORKER,
        "How often a Kafka group whose replicas are still moving is rebalanced, in addition to each of its steps.",
        least=100,
    ),
    Setting(
        "create_topics",
        "boolean",
        True,
        WORKER,
        "Whether workers create missing changelog topics. If not, `forebay topology apply` creates them.",
    ),
    Setting(
        "poll_interval_ms",
        "integer",
        10,
        WORKER,
        "Pause between polls of idle logs, longer if there are many. SQLite logs are read as soon as they change.",
        least=1,
    ),
    Setting(
        "apply_records_per_second",
        "integer",
        0,
        WORKER,
        "Total records applied a second at most, to leave disk and processor time to reads. 0 sets no limit.",
    ),
    Setting(
        "restore_processes",
        "integer",
        1,
        WORKER,
        "Processes that restore replicas that are far behind. With 0 the serving process restores them itself.",
    ),
    Setting(
        "statestore_checkpoint_interval_ms",
        "integer",
        300_000,
        WORKER,
        "How often offsets are written for stores that manage none, beside after 10,000 records (KIP-116).",
    ),
    Setting(
        "automatic_state_relocation",
        "boolean",
        True,
        WORKER,
        "Whether stores that now belong to another ordinal are moved there at start (KIP-816).",
    ),
    Setting(
        "state_cleanup_delay_ms",
        "integer",
        600_000,
        WORKER,
        "How long the state of a released task, or of a store that left the topology, is kept on disk. It counts "
        "from the release, whatever restarts follow.",
    ),
    Setting(
        "end_offset_max_age_ms",
        "integer",
        5_000,
        WORKER,
        "An end offset older than this proves no bound on record lag.",
        least=1,
    ),
    Setting(
        "record_lag_ceiling",
        "integer",
        None,
        WORKER,
        "Limit on how many records any answer may be behind, whatever a request or a store tolerates.",
    ),
    Setting(
        "time_lag_ceiling_ms",
        "integer",
        None,
        WORKER,
        "Limit on how far any answer may be behind the log, whatever a request or a store tolerates.",
    ),
    Setting(
        "age_ceiling_ms",
        "integer",
        None,
        WORKER,
        "Limit on how far any answer may be behind the source, whatever a request or a store tolerates.",
    ),
    Setting(
        "rocksdb_block_cache_bytes",
        "integer",
        256 << 20,
        WORKER,
        "Block cache shared by all stores of the process.",
        least=1 << 20,
    ),
    Setting(
        "rocksdb_write_buffer_bytes",
        "integer",
        256 << 20,
        WORKER,
        "Memory for writes not yet flushed, shared by all stores of the process.",
        least=1 << 20,
    ),
    Setting(
        "request_timeout_ms",
        "integer",
        1_000,
        BOTH,
        "Time that a request without `timeout_ms` may take, beside its `wait_ms`.",
        least=1,
    ),
    Setting(
        "max_request_timeout_ms", "integer", 30_000, BOTH, "Ceiling of `timeout_ms` and `wait_ms`.", least=1
    ),
    Setting(
        "max_in_flight",
        "integer",
        4_096,
        BOTH,
        "Requests in flight above which a process answers 429. Of this and the following limits one client, by "
        "token or address, takes all but the last eighth.",
        least=1,
    ),
    Setting(
        "max_waiting_reads",
        "integer",
        4_096,
        BOTH,
        "Reads with `wait_ms` in progress above which a process answers 429.",
        least=1,
    ),
    Setting(
        "request_memory_bytes",
        "integer",
        128 << 20,
        BOTH,
        "Memory for the bodies, pages and answers of requests in progress, above which a process answers 429.",
        least=8 << 20,
    ),
    Setting(
        "max_answer_bytes",
        "integer",
        32 << 20,
        BOTH,
        "Size above which a batch is not answered, but refused with 413.",
        least=1 << 10,
        # Half of what an answer may take: values may be longer as JSON.
        most=32 << 20,
    ),
    Setting(
        "max_key_bytes",
        "integer",
        4_096,
        BOTH,
        "Length of the longest key that a request may name, as it is written there.",
        least=4_096,
    ),
    Setting(
        "max_connections",
        "integer",
        16_384,
        BOTH,
        "Connections open at once above which a process closes new ones. It also closes them above three quarters "
        "of the files that it may have open.",
        least=1,
    ),
    Setting(
        "max_in_flight_per_worker",
        "integer",
        1_024,
        ROUTER,
        "Requests in flight at one worker above which a router asks another, and answers 429 if all are full. "
        "Each of the router's processes counts its own.",
        least=1,
    ),
    Setting(
        "max_event_streams",
        "integer",
        1_000,
        BOTH,
        "Event streams open at once above which a process answers 429.",
        least=1,
    ),
    Setting(
        "worker_poll_interval_ms",
        "integer",
        200,
        ROUTER,
        "Pause between polls of a worker's status. It is longer if polling all would take over 3 % of a core.",
        least=10,
    ),
    Setting(
        "lag_report_max_age_ms",
        "integer",
        5_000,
        ROUTER,
        "A worker's lag report older than this counts as unknown.",
        least=1,
    ),
    Setting("drain_ms", "integer", 5_000, BOTH, "How long listeners stay open after SIGTERM, while not ready."),
    Setting(
        "shutdown_timeout_ms", "integer", 25_000, BOTH, "Longest time from SIGTERM to the process' end.", least=1
    ),
    Setting(
        "allowed_hosts",
        "names",
        (),
        BOTH,
        "Names by which requests may address the process, or `*` for any. Addresses, names of loopback and the "
        "advertised name are allowed as well. By default any name is, if other machines may reach the process.",
    ),
    Setting(
        "trusted_proxies",
        "names",
        (),
        BOTH,
        "Networks of proxies, comma-separated, and `unix` for the Unix sockets: in their requests "
        "`X-Forwarded-For`, or `Forwarded`, names the client that limits count.",
    ),
    Setting(
        "proxy_protocol",
        "boolean",
        False,
        ROUTER,
        "Whether each connection from one of the `trusted_proxies` begins with a header of the PROXY protocol, "
        "which names the client that limits count.",
    ),
    Setting("cors_allow_origins", "names", (), BOTH, "Origins that browsers may read from, or `*`."),
    Setting(
        "tls_certificate_file",
        "path",
        None,
        BOTH,
        "PEM file of the certificate, with its chain, by which the listener speaks HTTPS, and nothing else. The "
        "file is read again when it changes.",
    ),
    Setting("tls_key_file", "path", None, BOTH, "PEM file of the certificate's private key, not encrypted."),
    Setting(
        "auth_tokens_file",
        "path",
        None,
        BOTH,
        "File of accepted tokens of at least 16 characters, one per line: `NAME TOKEN` or `NAME sha256:HEX`. The "
        "file is read again when it changes. "
        "Without it, and without `--authenticator`, every request is accepted.",
    ),
    Setting(
        "authenticator",
        "text",
        None,
        BOTH,
        "Name of an entry point in the group `forebay.authenticators` that authenticates requests instead of a "
        "tokens file.",
    ),
    Setting(
        "ticket_key_file",
        "path",
        None,
        BOTH,
        "File of the one key, of at least 32 characters, that signs tickets for event streams. The file is read "
        "again when it changes. Routers with the same key open each other's tickets. By default each process, or "
        "each router of several, makes a key at its start.",
    ),
    Setting(
        "allow_anonymous",
        "boolean",
        False,
        BOTH,
        "Whether a process that other machines may reach starts without a tokens file and an authenticator.",
    ),
    Setting(
        "worker_token_file",
        "path",
        None,
        ROUTER,
        "File of the one token that the router sends to workers. The file is read again when it changes.",
    ),
    Setting(
        "worker_token_networks",
        "names",
        (
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "169.254.0.0/16",
            "::1",
            "fc00::/7",
            "fe80::/10",
        ),
        ROUTER,
        "Networks, and names of workers, to which the router's token may go without TLS, comma-separated. By "
        "default these are loopback and the private ones (RFC 1918, RFC 4193, link-local). A worker elsewhere is "
        "not asked.",
    ),
    Setting(
        "worker_ca_file",
        "path",
        None,
        ROUTER,
        "PEM file of the authorities that vouch for the workers' certificates. With it, workers are asked over "
        "HTTPS only. The file is read again when it changes.",
    ),
    Setting(
        "log_level",
        "choice",
        "info",
        BOTH,
        "Least severe level logged: `debug`, `info`, `warning` or `error`.",
        choices=_LEVELS,
    ),
    Setting(
        "log_format", "choice", "text", BOTH, "Form of log lines: `text` or `json`.", choices=("text", "json")
    ),
)  # fmt: skip


def settings_for(tier: Tier) -> tuple[Setting, ...]:
    """The settings that a tier has."""
    return tuple(setting for setting in SETTINGS if tier in setting.tiers)
