"""Which worker holds what: StreamsMetadata and its look-ups (KIP-535)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from forebay.errors import NotReady, UnknownPartitioner, UnknownStore
from forebay.networks import parse_port
from forebay.partitioning import StreamPartitioner
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]+)")


def is_address(host: str) -> bool:
    """Whether this is an IP address, without brackets, rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a name or an address, without brackets, is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class HostInfo(NamedTuple):
    """Where a worker can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.is_ipv4 else f"[{self.host}]:{self.port}"

    @property
    def is_ipv4(self) -> bool:
        """Whether it is no address of IPv6: names are listened on by their addresses of IPv4."""
        return ":" not in self.host

    @property
    def is_unspecified(self) -> bool:
        """Whether it means all addresses of a machine, none of which others could reach by it."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @classmethod
    def parse(cls, text: str) -> HostInfo:
        """Read ``host:port`` (IPv6 in brackets); raises ``ValueError`` naming the text."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an address of the form HOST:PORT")
        try:
            port = parse_port(match["port"])
        except ValueError as error:
            raise ValueError(f"{text!r} is not an address of the form HOST:PORT: {error}") from None
        if not match["v6"]:
            try:
                match["host"].encode("idna")
            except UnicodeError as error:
                raise ValueError(f"{text!r} has a host that is no name: {error}") from None
        return cls(match["v6"] or match["host"], port)


class Generation(NamedTuple):
    """The order of assignments: the group's incarnation, then the generation within it."""

    incarnation: int
    number: int


NO_GENERATION = Generation(0, 0)


@dataclass(frozen=True)
class StreamsMetadata:
    """One worker as others see it."""

    host: HostInfo
    active_topic_partitions: frozenset[TopicPartition] = frozenset()
    standby_topic_partitions: frozenset[TopicPartition] = frozenset()
    active_store_names: frozenset[str] = frozenset()
    standby_state_store_names: frozenset[str] = frozenset()
    process_ids: frozenset[str] = frozenset()
    """The processes that the group knows at this address: two while one replaces another, none if the worker that
    tells it is older than this member."""

    def limited_to(self, stores: Set[str], topics: Set[str]) -> StreamsMetadata:
        """The same of some stores and their topics alone."""
        return replace(
            self,
            active_topic_partitions=frozenset(tp for tp in self.active_topic_partitions if tp.topic in topics),
            standby_topic_partitions=frozenset(tp for tp in self.standby_topic_partitions if tp.topic in topics),
            active_store_names=self.active_store_names & stores,
            standby_state_store_names=self.standby_state_store_names & stores,
        )


@dataclass(frozen=True)
class KeyQueryMetadata:
    """Where one key's partition is: the active host (None while there is none) and the standbys."""

    active_host: HostInfo | None
    standby_hosts: tuple[HostInfo, ...]
    partition: int


@dataclass(frozen=True)
class ClusterMap:
    """All workers' StreamsMetadata as of one generation of the group."""

    generation: Generation = NO_GENERATION
    hosts: tuple[StreamsMetadata, ...] = ()

    @cached_property
    def by_topic_partition(self) -> Mapping[TopicPartition, tuple[HostInfo | None, tuple[HostInfo, ...]]]:
        """Active host and standby hosts of every topic-partition that any worker holds."""
        actives: dict[TopicPartition, HostInfo] = {}
        standbys: dict[TopicPartition, list[HostInfo]] = {}
        for metadata in self.hosts:
            for tp in metadata.active_topic_partitions:
                actives[tp] = metadata.host
            for tp in metadata.standby_topic_partitions:
                standbys.setdefault(tp, []).append(metadata.host)
        held = actives.keys() | standbys.keys()
        return {tp: (actives.get(tp), tuple(sorted(standbys.get(tp, ())))) for tp in held}

    @cached_property
    def process_ids(self) -> Mapping[HostInfo, frozenset[str]]:
        return {metadata.host: metadata.process_ids for metadata in self.hosts}


def cluster_map(
    generation: Generation,
    stores: Iterable[StoreSpec],
    active_partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]],
    standby_partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]],
    process_ids: Mapping[HostInfo, frozenset[str]],
) -> ClusterMap:
    """The map that follows from the two ``…_partitions_by_host`` of an assignment, and its members by host."""
    names: dict[str, set[str]] = {}
    for spec in stores:
        names.setdefault(spec.topic, set()).add(spec.name)

    def store_names(partitions: frozenset[TopicPartition]) -> frozenset[str]:
        return frozenset(name for topic in {tp.topic for tp in partitions} for name in names.get(topic, ()))

    hosts = []
    for host in sorted(active_partitions_by_host.keys() | standby_partitions_by_host.keys()):
        active = active_partitions_by_host.get(host, frozenset())
        standby = standby_partitions_by_host.get(host, frozenset())
        hosts.append(
            StreamsMetadata(
                host,
                active,
                standby,
                store_names(active),
                store_names(standby),
                process_ids.get(host, frozenset()),
            )
        )
    return ClusterMap(generation, tuple(hosts))


@dataclass
class StreamsMetadataState:
    """The look-ups of KIP-535 over the newest known map.

    Three cases are distinguished: an unknown store raises ``UnknownStore``, a map that was never received raises
    ``NotReady``, and a partition without a holder has no active host.
    """

    stores: Mapping[str, StoreSpec]
    map: ClusterMap = field(default_factory=ClusterMap)

    def limited_to(self, sees: Callable[[str], bool]) -> StreamsMetadataState:
        """The same with those stores alone that are to be seen; whoever holds none of them is left out."""
        stores = {name: spec for name, spec in self.stores.items() if sees(name)}
        if len(stores) == len(self.stores):
            return self
        topics = {spec.topic for spec in stores.values()}
        hosts = [host.limited_to(stores.keys(), topics) for host in self.map.hosts]
        held = tuple(host for host in hosts if host.active_topic_partitions or host.standby_topic_partitions)
        return StreamsMetadataState(stores, ClusterMap(self.map.generation, held))

    def on_change(self, newer: ClusterMap) -> bool:
        """Adopt a map unless it is older than the known one; returns whether it was adopted."""
        if newer.generation < self.map.generation:
            return False
        self.map = newer
        return True

    def all_metadata(self) -> tuple[StreamsMetadata, ...]:
        """Every host that the newest map names."""
        return self._map().hosts

    def all_metadata_for_store(self, store: str) -> tuple[StreamsMetadata, ...]:
        """Hosts that hold an active partition of the store."""
        self._spec(store)
        return tuple(host for host in self._map().hosts if store in host.active_store_names)

    def all_standby_metadata(self) -> tuple[StreamsMetadata, ...]:
        """Hosts that hold any standby."""
        return tuple(host for host in self._map().hosts if host.standby_topic_partitions)

    def all_standby_metadata_for_store(self, store: str) -> tuple[StreamsMetadata, ...]:
        """Hosts that hold a standby partition of the store."""
        self._spec(store)
        return tuple(host for host in self._map().hosts if store in host.standby_state_store_names)

    def metadata_for_key(
        self, store: str, key: Any, partitioner: StreamPartitioner | None = None
    ) -> StreamsMetadata | None:
        """The host that is active for a key (a JSON value), None while there is none."""
        active = self.query_metadata_for_key(store, key, partitioner).active_host
        return next((host for host in self._map().hosts if host.host == active), None)

    def standby_metadata_for_key(
        self, store: str, key: Any, partitioner: StreamPartitioner | None = None
    ) -> tuple[StreamsMetadata, ...]:
        """The hosts that hold a key's partition as standby."""
        standbys = set(self.query_metadata_for_key(store, key, partitioner).standby_hosts)
        return tuple(host for host in self._map().hosts if host.host in standbys)

    def query_metadata_for_key(
        self, store: str, key: Any, partitioner: StreamPartitioner | None = None
    ) -> KeyQueryMetadata:
        """Active and standby hosts and the partition of a key, a JSON value encoded by the store's codec."""
        return self.key_query_metadata(store, self._spec(store).key_codec.from_json(key), partitioner)

    def key_query_metadata(
        self, store: str, plain_key: bytes, partitioner: StreamPartitioner | None = None
    ) -> KeyQueryMetadata:
        """The same for a key in its plain bytes. The partition is over the store's true partition count."""
        spec = self._spec(store)
        chosen = partitioner or spec.stream_partitioner
        if chosen is None:
            raise UnknownPartitioner(
                f"The partitioner of the store {store!r} is 'unknown', so the partition of a key is not known.",
                store=store,
            )
        return self.partition_metadata(store, chosen.partition(plain_key, spec.partitions))

    def partition_metadata(self, store: str, partition: int) -> KeyQueryMetadata:
        """The same for a key whose partition is known."""
        spec = self._spec(store)
        active, standbys = self._map().by_topic_partition.get(TopicPartition(spec.topic, partition), (None, ()))
        return KeyQueryMetadata(active, standbys, partition)

    def _spec(self, store: str) -> StoreSpec:
        try:
            return self.stores[store]
        except KeyError:
            raise UnknownStore(f"There is no store {store!r}.", store=store) from None

    def _map(self) -> ClusterMap:
        if self.map.generation == NO_GENERATION:
            raise NotReady("No assignment of the worker group is known yet.", retry_after_s=1)
        return self.map
