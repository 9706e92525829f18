"""A tier's settings, named as in the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.listen_addresses import ListenAddress
from forebay.streams_metadata import HostInfo


@dataclass(frozen=True)
class WorkerSettings:
    """A worker's settings; the meaning of each is in the table."""

    topology: Path
    changelog: str
    state_dir: Path
    group: str | None
    listen: tuple[ListenAddress, ...]
    socket_group: str | None
    processes: int
    advertise: HostInfo | None
    rack: str | None
    num_standby_replicas: int
    acceptable_recovery_lag: int
    max_warmup_replicas: int
    session_timeout_ms: int
    standby_rebuild_delay_ms: int
    returns: bool
    initial_rebalance_delay_ms: int
    probing_rebalance_interval_ms: int
    create_topics: bool
    poll_interval_ms: int
    apply_records_per_second: int
    restore_processes: int
    statestore_checkpoint_interval_ms: int
    automatic_state_relocation: bool
    state_cleanup_delay_ms: int
    end_offset_max_age_ms: int
    record_lag_ceiling: int | None
    time_lag_ceiling_ms: int | None
    age_ceiling_ms: int | None
    rocksdb_block_cache_bytes: int
    rocksdb_write_buffer_bytes: int
    request_timeout_ms: int
    max_request_timeout_ms: int
    max_in_flight: int
    max_waiting_reads: int
    request_memory_bytes: int
    max_answer_bytes: int
    max_key_bytes: int
    max_connections: int
    max_event_streams: int
    drain_ms: int
    shutdown_timeout_ms: int
    allowed_hosts: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    cors_allow_origins: tuple[str, ...]
    tls_certificate_file: Path | None
    tls_key_file: Path | None
    auth_tokens_file: Path | None
    authenticator: str | None
    ticket_key_file: Path | None
    allow_anonymous: bool
    log_level: str
    log_format: str


@dataclass(frozen=True)
class RouterSettings:
    """A router's settings; the meaning of each is in the table."""

    seeds: tuple[HostInfo, ...]
    application_id: str | None
    listen: tuple[ListenAddress, ...]
    socket_group: str | None
    processes: int
    rack: str | None
    own_host: str | None
    request_timeout_ms: int
    max_request_timeout_ms: int
    max_in_flight: int
    max_waiting_reads: int
    request_memory_bytes: int
    max_answer_bytes: int
    max_key_bytes: int
    max_connections: int
    max_in_flight_per_worker: int
    max_event_streams: int
    worker_poll_interval_ms: int
    lag_report_max_age_ms: int
    drain_ms: int
    shutdown_timeout_ms: int
    allowed_hosts: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    cors_allow_origins: tuple[str, ...]
    tls_certificate_file: Path | None
    tls_key_file: Path | None
    auth_tokens_file: Path | None
    authenticator: str | None
    ticket_key_file: Path | None
    allow_anonymous: bool
    worker_token_file: Path | None
    worker_token_networks: tuple[str, ...]
    worker_ca_file: Path | None
    log_level: str
    log_format: str
