"""The one table of settings: it makes the flags, the environment names, the defaults and the docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ENVIRONMENT_PREFIX = "FOREBAY_"

Tier = Literal["worker", "router"]
Kind = Literal["text", "path", "address", "addresses", "integer", "boolean", "names", "choice"]

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
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

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
        "URL of the worker group, `sqlite:///FILE` or `kafka://HOST:PORT,…`; by default `group.db` beside the "
        "SQLite changelog, or the Kafka changelog's brokers.",
    ),
    Setting(
        "seeds",
        "addresses",
        None,
        ROUTER,
        "Workers to learn the others from, comma-separated; a name stands for every address that it resolves to, "
        "looked up every 5 s.",
        required=True,
    ),
    Setting(
        "application_id",
        "text",
        None,
        ROUTER,
        "The application whose workers are asked; by default that of the seeds, if all are of one.",
    ),
    Setting("listen", "address", "127.0.0.1:8080", BOTH, "Address to listen on."),
    Setting(
        "processes",
        "integer",
        1,
        ROUTER,
        "Processes that answer at the one address; each has limits and connections of its own.",
        least=1,
    ),
    Setting(
        "advertise",
        "address",
        None,
        WORKER,
        "Address under which others reach this worker; by default the listen address, or the host's full "
        "name where that is a wildcard.",
    ),
    Setting(
        "rack",
        "text",
        None,
        WORKER,
        "What fails together with this worker, such as its zone; standbys prefer another (KIP-708).",
    ),
    Setting("num_standby_replicas", "integer", 1, WORKER, "Standbys of each task, on other hosts."),
    Setting(
        "acceptable_recovery_lag",
        "integer",
        10_000,
        WORKER,
        "Records behind per store up to which a replica counts as caught up.",
    ),
    Setting("max_warmup_replicas", "integer", 2, WORKER, "Extra replicas that may warm up at once.", least=1),
    Setting(
        "session_timeout_ms",
        "integer",
        6_000,
        WORKER,
        "A member that renews its lease no longer than this ago is alive.",
        least=300,
    ),
    Setting(
        "standby_rebuild_delay_ms",
        "integer",
        60_000,
        WORKER,
        "How long a member must be away before its replicas are built anew elsewhere.",
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
        "How often a Kafka group whose replicas are still moving is rebalanced, besides at every step it makes.",
        least=100,
    ),
    Setting(
        "create_topics",
        "boolean",
        True,
        WORKER,
        "Whether missing changelog topics are created; else `forebay topology apply` does.",
    ),
    Setting(
        "poll_interval_ms",
        "integer",
        10,
        WORKER,
        "Pause between looks at idle logs, longer where they are many; SQLite's are read at once when written to.",
        least=1,
    ),
    Setting(
        "apply_records_per_second",
        "integer",
        0,
        WORKER,
        "Most records applied a second in all, to leave disk and processor to reads; 0 is unlimited.",
    ),
    Setting(
        "restore_processes",
        "integer",
        1,
        WORKER,
        "Processes that restore replicas far behind; 0 restores in the serving process.",
    ),
    Setting(
        "statestore_checkpoint_interval_ms",
        "integer",
        300_000,
        WORKER,
        "How often the offsets of stores that do not manage their own are written (KIP-116).",
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
        "How long a released task's directory is kept on disk.",
    ),
    Setting(
        "end_offset_max_age_ms",
        "integer",
        5_000,
        WORKER,
        "An end offset observed longer ago proves no bound on record lag.",
        least=1,
    ),
    Setting(
        "record_lag_ceiling",
        "integer",
        None,
        WORKER,
        "Most records that any answer may be behind, whatever a request or a store tolerates.",
    ),
    Setting(
        "time_lag_ceiling_ms",
        "integer",
        None,
        WORKER,
        "Most time that any answer may be behind the log, whatever a request or a store tolerates.",
    ),
    Setting(
        "age_ceiling_ms",
        "integer",
        None,
        WORKER,
        "Most time that any answer may be behind the source, whatever a request or a store tolerates.",
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
        "Time a request may take that names no `timeout_ms`.",
        least=1,
    ),
    Setting(
        "max_request_timeout_ms", "integer", 30_000, BOTH, "Ceiling of `timeout_ms` and `wait_ms`.", least=1
    ),
    Setting(
        "max_in_flight",
        "integer",
        4_096,
        ROUTER,
        "Requests in flight in all beyond which a router answers 429; for each of its processes.",
        least=1,
    ),
    Setting(
        "max_in_flight_per_worker",
        "integer",
        1_024,
        ROUTER,
        "Requests in flight at one worker beyond which a router asks another, and answers 429 where all are full; "
        "for each of its processes.",
        least=1,
    ),
    Setting(
        "max_event_streams",
        "integer",
        4_096,
        BOTH,
        "Event streams open at once beyond which a process answers 429.",
        least=1,
    ),
    Setting(
        "worker_poll_interval_ms",
        "integer",
        200,
        ROUTER,
        "Pause between looks at a worker's status; longer where all looks would take over 3 % of a core.",
        least=10,
    ),
    Setting(
        "lag_report_max_age_ms",
        "integer",
        5_000,
        ROUTER,
        "A worker's lag reported longer ago counts as unknown.",
        least=1,
    ),
    Setting("drain_ms", "integer", 5_000, BOTH, "How long listeners stay open after SIGTERM, not ready."),
    Setting(
        "shutdown_timeout_ms", "integer", 25_000, BOTH, "Longest time from SIGTERM to the process' end.", least=1
    ),
    Setting("cors_allow_origins", "names", (), BOTH, "Origins that browsers may read from, or `*`."),
    Setting(
        "auth_tokens_file",
        "path",
        None,
        BOTH,
        "File of the tokens that requests may have, a line each: `NAME TOKEN` or `NAME sha256:HEX`; read again "
        "when it changes. Without it, and without `--authenticator`, anybody may ask.",
    ),
    Setting(
        "authenticator",
        "text",
        None,
        BOTH,
        "Name of an entry point in the group `forebay.authenticators`, to rule on requests instead of a "
        "tokens file.",
    ),
    Setting(
        "worker_token_file",
        "path",
        None,
        ROUTER,
        "File of the one token that the router sends to workers; read again when it changes.",
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
