"""A worker: combines state directory, tasks, group membership and reads."""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import UNSET

from forebay.bearer_tokens import token_file
from forebay.clock import boot_ms, epoch_ms, time_text
from forebay.codecs.values import DECODED_BY_SCHEMA
from forebay.errors import NotReady, Problem, SettingError
from forebay.lag import Lag, Tolerance
from forebay.settings import WorkerSettings
from forebay.store_spec import StoreSpec, headed_topics
from forebay.streams_metadata import HostInfo, StreamsMetadataState
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay.unproven import UnprovenRange
from forebay.wire.answer_schemas.status import Ceiling, Identity, MapGeneration, ReplicaRow, WorkerStatus
from forebay_changelog import open_changelog
from forebay_changelog.kafka.schemas import know_schemas
from forebay_web.event_streams import EventStreams
from forebay_web.health.findings import Finding
from forebay_web.health.survey import ReplicaState, silent_writers
from forebay_web.limits import Limits
from forebay_worker.changelog_topics import TopicCreation
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.member_health import HealthMonitor
from forebay_worker.group.membership import open_membership
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo
from forebay_worker.reads.admission import Admission
from forebay_worker.reads.disk_reads import DiskReads
from forebay_worker.reads.keys import Reads
from forebay_worker.reads.scans import Scans
from forebay_worker.snapshots.giving import Snapshots
from forebay_worker.snapshots.repository import SnapshotRepository
from forebay_worker.snapshots.saving import SnapshotSaver
from forebay_worker.snapshots.taking import PeerCopier
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets_file import CAUGHT_UP, INCOMPLETE
from forebay_worker.state.relocate import prepare_state
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.manager import TaskManager
from forebay_worker.tasks.recovery import RecoveryPolicy
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.replica_view import ReplicaView
from forebay_worker.tasks.restore_process import SCHEMAS_DIRECTORY

log = logging.getLogger(__name__)

_CHECKS_AWAITED_MS = 500.0
_DRAIN_POLL_S = 0.005


class Worker:
    """One worker process's parts; raises ``ConfigurationError`` or ``ChangelogError`` if it cannot be created."""

    def __init__(self, settings: WorkerSettings, host: HostInfo, limits: Limits) -> None:
        self.settings = settings
        self.host = host
        self.topology = load_topology(settings.topology)
        _require_registry(self.topology, settings.schema_registry)
        self._changelog = open_changelog(settings.changelog)
        # First: a worker of another application must leave nothing behind.
        self.membership = open_membership(
            settings.group,
            self.topology,
            self._changelog,
            AssignmentPolicy(
                settings.num_standby_replicas, settings.acceptable_recovery_lag, settings.max_warmup_replicas
            ),
            GroupTimeouts(
                settings.session_timeout_ms,
                settings.standby_rebuild_delay_ms,
                settings.initial_rebalance_delay_ms,
                settings.probing_rebalance_interval_ms,
            ),
        )
        self._ends = contextlib.ExitStack()
        """What has to be ended, the last to start first."""
        self._directory = StateDirectory(settings.state_dir, self.topology.application_id)
        self._ends.callback(self._directory.close)
        self._topics = TopicCreation(self._changelog, self.topology, self._directory, settings.create_topics)
        self._ends.callback(self._topics.stop)
        self._topics.start()
        know_schemas(settings.schema_registry, self._directory.path / SCHEMAS_DIRECTORY)
        prepare_state(self._directory, self.topology, settings.automatic_state_relocation)
        self.metadata = StreamsMetadataState(self.topology.stores)
        self.snapshot_token = token_file(settings.snapshot_token_file)
        self.snapshots = Snapshots(self._directory.path / ".snapshots", settings.snapshot_bytes_per_second)
        self._ends.callback(self.snapshots.close)
        url, application_id = settings.snapshots, self.topology.application_id
        self._repository = None if url is None else SnapshotRepository(url, application_id)
        self.memory = RocksDbMemory(settings.rocksdb_block_cache_bytes, settings.rocksdb_write_buffer_bytes)
        self.tasks = TaskManager(
            self.topology,
            self._changelog,
            self._directory,
            StoreFactory(
                self._directory, self._changelog, self.memory, settings.statestore_checkpoint_interval_ms
            ),
            RecoveryPolicy(
                settings.apply_records_per_second,
                settings.restore_processes,
                self._copier().copy,
                settings.schema_registry,
                headed_topics(self.topology.stores.values()),
            ),
            settings.state_cleanup_delay_ms,
        )
        self._health_monitor = HealthMonitor(settings.standby_rebuild_delay_ms)
        self._ceiling = Tolerance(
            settings.record_lag_ceiling, settings.time_lag_ceiling_ms, settings.age_ceiling_ms
        )
        self.admission = Admission(
            self.topology,
            self.metadata,
            str(host),
            self.tasks,
            self.membership.member,
            self._ceiling,
        )
        self.saver = self._saver()
        self.disk_reads = DiskReads(lambda: self.memory.block_cache_is_full)
        self.reads = Reads(self.admission, settings.max_answer_bytes, self.disk_reads)
        self.scans = Scans(self.admission, self.disk_reads)
        self.limits = limits
        self.streams = EventStreams(self.limits.streams)
        self.incarnation = self._directory.next_incarnation(int(epoch_ms()))
        self._sequence = itertools.count(1)
        self.draining = False
        self._was_ready = self._assigned = False

    def _copier(self) -> PeerCopier:
        settings = self.settings
        scheme = "http" if settings.tls_certificate_file is None else "https"
        authorities = _authorities(settings.snapshot_ca_file)
        return PeerCopier(self._holders, self.snapshot_token, scheme, authorities, self._repository)

    def _saver(self) -> SnapshotSaver | None:
        if self._repository is None:
            return None
        interval_ms = self.settings.snapshot_interval_ms
        return SnapshotSaver(self._repository, self.snapshots, self.tasks, self.admission, interval_ms)

    def _holders(self, tp: TopicPartition) -> list[HostInfo]:
        """The other workers that hold a partition, its active last: that has the most reads."""
        active, standbys = self.metadata.map.by_topic_partition.get(tp, (None, ()))
        return [host for host in (*standbys, active) if host is not None and host != self.host]

    def start(self) -> None:
        """Serve what is on disk, then join the group; where that fails, ``stop`` ends what did start."""
        self.tasks.start()
        self._ends.callback(self.tasks.stop)
        self._ends.callback(self.disk_reads.close)
        if self.saver is not None:
            self.saver.start()
            self._ends.callback(self.saver.stop)
        self._await_checks()
        self.membership.start(self._subscription, self._on_assignment)
        self._ends.callback(self.membership.leave)

    def _await_checks(self) -> None:
        """Let copies on disk be compared with their logs first, if that is quickly done: until then the group
        relies on others, and would have to move their tasks once more."""
        until = boot_ms() + _CHECKS_AWAITED_MS
        while boot_ms() < until and not self.tasks.checked:
            time.sleep(_DRAIN_POLL_S)

    def drain(self) -> None:
        """Turn readiness off and end the streams: load balancers and clients should look elsewhere."""
        self.draining = True
        self.streams.end_all()

    def stop(self) -> None:
        """Leave the group and close every store; what fails keeps nothing else from being ended."""
        self.draining = True
        self._ends.close()

    def readiness(self) -> Problem | None:
        """Why the worker is not ready: once it was, only draining or an unusable disk makes it not ready."""
        if self.draining:
            return NotReady("The worker is shutting down.")
        if self.tasks.storage_fault is not None:
            return NotReady(self.tasks.storage_fault, retry_after_s=1)
        if not self._was_ready:
            if self._topics.storage_fault is not None:
                return NotReady(self._topics.storage_fault, retry_after_s=1)
            # A leader with another topology assigns nothing, and held replicas are served meanwhile.
            joined = self._assigned or self.membership.state == "other-topology"
            if not joined or not self.tasks.matches_assignment:
                why = "" if self.membership.refusal is None else f" {self.membership.refusal}"
                return NotReady(f"The worker has not joined its group yet.{why}", retry_after_s=1)
            behind = [
                f"{replica.spec.name}-{replica.task.partition}"
                for replica in self.tasks.replicas.values()
                if not replica.view.consistent or not self._is_near(replica)
            ]
            if behind:
                return NotReady(f"{len(behind)} replicas are not caught up yet.", retry_after_s=1, behind=behind)
            self._was_ready = True
        return None

    def disk(self) -> tuple[int, int]:
        """Bytes of the disk of the state directory, and how many of them are free; raises ``OSError``."""
        usage = shutil.disk_usage(self._directory.path)
        return usage.total, usage.free

    def application(self) -> tuple[str, str]:
        """Application id and topology fingerprint."""
        return self.topology.application_id, self.topology.fingerprint

    def identity(self) -> Identity:
        """Which process this is."""
        application_id = self.topology.application_id
        return Identity("worker", application_id, self._directory.process_id, self.incarnation)

    def spec(self, store: str) -> StoreSpec:
        """A store's specification; raises ``UnknownStore``."""
        return self.admission.spec(store)

    def replica_rows(self, store: str | None = None) -> Iterator[ReplicaRow]:
        """Every replica held, or those of a store, one by one: there may be thousands."""
        held = sorted(self.tasks.replicas.items())
        return (self._row(name, replica) for (name, _), replica in held if store in (None, name))

    def _row(self, store: str, replica: Replica) -> ReplicaRow:
        role, lag = self.admission.proven_lag(replica)
        view = replica.served.view
        restoration = self.tasks.bulk_restore.restoring(replica)
        return ReplicaRow(
            store,
            replica.task.partition,
            role,
            *lag,
            task=str(replica.task),
            host=str(self.host),
            offset=view.progress.position,
            end_offset=view.progress.end_offset,
            high_watermark=view.progress.high_watermark,
            open_transaction_records=view.progress.open_transaction_records,
            restored=view.restored,
            failure=UNSET if replica.stopped_by is None else replica.stopped_by,
            notices=_notices(replica, lag) or UNSET,
            restored_records=UNSET if restoration is None else restoration.records,
            restored_records_per_second=UNSET if restoration is None else round(restoration.records_per_second),
            restore_seconds_left=UNSET if restoration is None else restoration.seconds_left,
        )

    knows_all_replicas = False
    expected_replicas = None

    @property
    def state(self) -> str:
        """``draining``, or its state in the group."""
        return "draining" if self.draining else self.membership.state

    def replica_states(self, spec: StoreSpec, partition: int) -> list[ReplicaState]:
        """This worker's replica of a partition, if it holds one."""
        replica = self.tasks.replicas.get((spec.name, partition))
        if replica is None:
            return []
        role, lag = self.admission.proven_lag(replica)
        restoration = self.tasks.bulk_restore.restoring(replica)
        return [
            ReplicaState(
                str(self.host),
                role,
                lag,
                lagging=lag.record_lag is not None and not self._is_near(replica),
                failure=replica.stopped_by,
                restored_records=None if restoration is None else restoration.records,
                restore_seconds_left=None if restoration is None else restoration.seconds_left,
                notices=_notices(replica, lag),
            )
        ]

    def live_workers(self) -> dict[str, bool]:
        """This one."""
        return {str(self.host): True}

    def own_findings(self) -> list[Finding]:
        """What the machine, the group or the snapshots' place refuses, or that the worker is not ready."""
        problem = self.readiness()
        if self.storage_fault is not None:
            return [Finding.of_message("storage_fault", "error", self.storage_fault, "See the worker's log.")]
        if problem is not None:
            return [Finding("not-ready", "warning", problem.detail, "Wait until its replicas are caught up.")]
        return [] if self.saver is None else self.saver.findings()

    @property
    def storage_fault(self) -> str | None:
        """What the machine or the group refuses, such as disk space, and the remedy."""
        return self.tasks.storage_fault or self._topics.storage_fault or self.membership.refusal

    def status(self, rows: list[ReplicaRow]) -> WorkerStatus:
        """``GET /v1/status``: the heartbeat that routers read, with the rows of all replicas."""
        generation = self.metadata.map.generation
        return WorkerStatus(
            application_id=self.topology.application_id,
            process_id=self._directory.process_id,
            incarnation=self.incarnation,
            topology=self.topology.fingerprint,
            host=str(self.host),
            rack=self._rack,
            sequence=next(self._sequence),
            state=self.state,
            generation=MapGeneration(generation.incarnation, generation.number),
            storage_fault=self.storage_fault,
            ceiling=Ceiling(*self._ceiling),
            acceptable_recovery_lag=self.settings.acceptable_recovery_lag,
            num_standby_replicas=self.settings.num_standby_replicas,
            tasks=rows,
        )

    def _subscription(self) -> SubscriptionInfo:
        copies = self.tasks.copies(self._reported_position)
        return SubscriptionInfo(
            self._directory.process_id,
            self.incarnation,
            self.host,
            self.topology.fingerprint,
            {task: copy.positions for task, copy in copies.items()},
            rack=self._rack,
            health=self._health_monitor.health(self.tasks.machine_storage_fault, boot_ms()),
            unchecked=frozenset(task for task, copy in copies.items() if not copy.checked),
            restoring=self._restoring(),
            returns=self.settings.returns,
        )

    def _restoring(self) -> dict[TaskId, tuple[int, ...]]:
        """How far the tasks of which a store is still being restored are, if the log was found to be theirs.

        A copy that is on its way counts as if it had arrived: it will long before a replay has come as far.
        """
        replicas = self.tasks.replicas
        offsets: dict[TaskId, tuple[int, ...]] = {}
        for task in {replica.task for replica in replicas.values() if not replica.view.restored}:
            held = [replicas[spec.name, task.partition] for spec in self.topology.stores_of(task)]
            positions = [position for position in map(self._restored_to, held) if position is not None]
            if len(positions) == len(held):
                offsets[task] = tuple(positions)
        return offsets

    def _restored_to(self, replica: Replica) -> int | None:
        restoration = self.tasks.bulk_restore.restoring(replica)
        if restoration is not None and restoration.copy is not None and restoration.copy.leads_to > 0:
            return restoration.copy.leads_to
        view = replica.view
        return view.progress.position if view.checked and not view.diverged else None

    def _reported_position(self, replica: Replica) -> int:
        """What the group is told of a store. Of a running active whose lag is proven to be acceptable that is no
        position: the log may have gone on by the time it is read."""
        if not replica.view.restored:
            return INCOMPLETE
        role, _ = self.admission.lag(replica)
        return CAUGHT_UP if role == "active" and self._is_near(replica) else replica.view.progress.position

    @property
    def _rack(self) -> str:
        """Workers on one machine fail together."""
        return self.settings.rack or self.host.host

    def _is_near(self, replica: Replica) -> bool:
        """Whether its lag is known, and acceptable for an active."""
        behind = self.admission.records_behind(replica)
        return behind is not None and behind <= self.settings.acceptable_recovery_lag

    def _on_assignment(self, info: AssignmentInfo) -> None:
        me = self._directory.process_id
        # A different address means a different process, from before a restart or with a copy of the state
        # directory.
        if info.hosts.get(me) == self.host:
            active, standby = info.tasks_of(me)
            log.info(
                "generation %d: %d tasks active here, %d standby",
                info.generation.number,
                len(active),
                len(standby),
            )
            self.tasks.hold(active, standby)
            # Only now: before, holding nothing is what was requested last, and would count as ready.
            self._assigned = True
        else:
            # Made while it counted as gone, or was another process: it is active for nothing, and releases nothing
            # yet.
            self.tasks.hold_as_standby()
        self.metadata.on_change(info.map(self.topology))


def _authorities(path: Path | None) -> ssl.SSLContext:
    """Those that vouch for other workers, the machine's by default; raises ``SettingError``."""
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"snapshot_ca_file {path} has no certificates that can be read: {error}.") from None


def _require_registry(topology: Topology, registry: str | None) -> None:
    """Raise ``SettingError`` if a store needs a schema registry, and none is named."""
    spec = next((spec for spec in topology.stores.values() if spec.needs_registry), None)
    if spec is not None and registry is None:
        what = f"values of {spec.value}" if spec.value in DECODED_BY_SCHEMA else f"keys of {spec.key}"
        raise SettingError(
            f"The store {spec.name!r} has {what} with schemas: set schema_registry to the URL of the "
            "registry that has them."
        )


def _notices(replica: Replica, lag: Lag) -> dict[str, str]:
    """What is wrong with a replica's log or with its writers, by kind."""
    return {**replica.notices, **_writer_notices(replica.served.view, lag, epoch_ms())}


def _writer_notices(view: ReplicaView, lag: Lag, now_epoch_ms: float) -> dict[str, str]:
    """What is wrong with those who write to a log, as its heartbeats tell it, and the remedy, by kind; ``lag`` is
    the replica's, as it can be proven."""
    found = {}
    silent = silent_writers(view.spec, view.beat_epoch_ms, lag, now_epoch_ms)
    if silent:
        found["writer-silent"] = _silent(view.spec.name, silent)
    unproven = [one for one in view.unproven if view.is_kept(one)]
    if unproven:
        found["entries-unproven"] = _UNPROVEN.format(" and ".join(map(_span, unproven)))
    return found


def _silent(store: str, silent: Mapping[str, int]) -> str:
    """Nobody else may notice: without a source, the age of what a tap writes is unknown."""
    named = ", ".join(f"{writer!r} since {time_text(since_ms)}" for writer, since_ms in silent.items())
    return (
        f"no heartbeat came from the writer {named}, so the store may be as old. Start its Spark query or tap "
        "(forebay spark follow) again. If its batches are to take longer, give the store a max_age_ms in the "
        f"topology. If it is gone for good, retire it: forebay changelog retire-writer {store} WRITER."
    )


_UNPROVEN = (
    "what ended {} may be missing, since its tap did not see it leave the state. Lists of that time say complete: "
    "false until retention_ms has passed it. For the tap's next absence, raise "
    "spark.sql.streaming.minBatchesToRetain of the query as docs/state-tap.md says."
)


def _span(unproven: UnprovenRange) -> str:
    until = f"until {time_text(unproven.to_ms)}"
    return until if unproven.from_ms is None else f"from {time_text(unproven.from_ms)} {until}"
