"""Reads: one key, and several keys.

Progress is taken before the content, so that the lag is never understated; the position token is made from what
was being applied after it, so that the token is an upper bound of what was read.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

from forebay.errors import AnswerTooLarge, NotReady, Problem, RecordTooOld, SchemaUnavailable
from forebay.event_loop_turns import in_turns
from forebay.lag import Lag, Tolerance
from forebay.state_store import StateStore
from forebay.store_kinds import SINGLE_VALUE_KINDS
from forebay.store_spec import StoreSpec
from forebay.stored_values import timestamp_ms_of
from forebay.wire.answers import MAX_ANSWER_BYTES, WITH_LAG, EncodedReplicaInfo, HttpAnswer, problem_answer
from forebay.wire.batches import BatchKeys, KeyResult, key_result, read_plain, read_plain_keys, require_size
from forebay.wire.parameters import ReadParameters
from forebay.wire.scans import require_kind
from forebay_web.limits import Held
from forebay_worker.reads.admission import Admission, Refused
from forebay_worker.reads.disk_reads import DiskReads, not_in_memory
from forebay_worker.reads.values import (
    KeyForm,
    KeyForms,
    key_document,
    key_documents,
    key_forms,
    miss,
    require_versions,
    require_young,
    sought,
    value_of,
    values_of,
    why_unproven,
)
from forebay_worker.tasks.replica import Replica

_MAX_TESTED_AT_ONCE = 128
"""Keys of a batch of which memory is asked in one turn: a millisecond."""


PartitionOf: TypeAlias = Callable[[bytes], int]
"""The partition of a plain key; raises ``Problem``."""


class LocatedKeys:
    """A batch's keys by partition, and by place the results of those that have none."""

    def __init__(self, count: int, faults: dict[int, KeyResult]) -> None:
        self.count = count
        self.faults = faults
        self._by_partition: dict[int, tuple[list[int], list[bytes]]] = defaultdict(lambda: ([], []))

    def placing(self, plains: Iterable[tuple[int, bytes]], partition_of: PartitionOf) -> Iterator[None]:
        """Add keys, one with each step."""
        by_partition = self._by_partition
        for index, plain in plains:
            try:
                indices, found = by_partition[partition_of(plain)]
            except Problem as problem:
                self.faults[index] = key_result(problem_answer(problem))
            else:
                indices.append(index)
                found.append(plain)
            yield

    def at(self, only: Set[int] | None) -> Iterable[tuple[int, tuple[list[int], list[bytes]]]]:
        """Partitions with the places and plain bytes of their keys, all or ``only`` those at some places."""
        if only is None:
            yield from self._by_partition.items()
            return
        for partition, (indices, plains) in self._by_partition.items():
            kept = [number for number, index in enumerate(indices) if index in only]
            if kept:
                yield partition, ([indices[number] for number in kept], [plains[number] for number in kept])


def without_repeats(
    places: list[int], plains: list[bytes]
) -> tuple[list[int], list[bytes], Sequence[tuple[int, int]]]:
    """Places and plain bytes of keys without repeated ones, and of these the place and that of the first."""
    if len(set(plains)) == len(plains):
        return places, plains, ()
    firsts: dict[bytes, int] = {}
    repeats = [
        (place, first)
        for place, plain in zip(places, plains, strict=True)
        if (first := firsts.setdefault(plain, place)) != place
    ]
    return list(firsts.values()), list(firsts), repeats


class Found(NamedTuple):
    """The stamped value of a key, None if there is none, and its provenance."""

    value: bytes | None
    replica_info: EncodedReplicaInfo


class Batched(NamedTuple):
    """The results for several keys, in order, those keys whose replica may soon have a better answer, and the lags
    that results state."""

    results: list[KeyResult]
    waiting: list[int]
    lags: set[Lag]

    @classmethod
    def of(cls, located: LocatedKeys) -> Batched:
        """Those for keys that have no partition; the others are to be filled in."""
        results: list[Any] = [None] * located.count
        for index, fault in located.faults.items():
            results[index] = fault
        return cls(results, [], set())

    def refuse(self, index: int, refused: Refused) -> None:
        """Set the result of a key that its replica refuses."""
        self.results[index] = key_result(refused.answer())
        if refused.may_wait:
            self.waiting.append(index)


class KeyRead:
    """A read of one key without the key: its store and parameters, prepared once for all identical reads."""

    __slots__ = ("_admission", "_codec", "_key_form", "_served", "_spec", "parameters")

    def __init__(
        self, admission: Admission, spec: StoreSpec, key_form: KeyForms, parameters: ReadParameters
    ) -> None:
        require_kind(spec, *SINGLE_VALUE_KINDS)
        require_versions(spec, parameters)
        self._admission = admission
        self._spec = spec
        self._key_form = key_form
        self._codec = spec.value_codec
        self._served = admission.served[spec.name]
        self.parameters = parameters

    @property
    def bounds(self) -> tuple[str, Tolerance]:
        """The store and the tolerance that an answer is within: it still is if it waits before it is sent."""
        return self._spec.name, self._admission.tolerance(self._spec, self.parameters)

    def answer(self, segment: bytes, *, from_memory: bool = False) -> HttpAnswer:
        """Answer for a key as it appears in the path; raises ``Problem`` or ``Refused``, and as ``value_of`` does
        ``NotInMemory``."""
        admission, parameters = self._admission, self.parameters
        key = self._key_form(segment)
        partition = admission.agreed_partition(self._spec, key.partition, parameters.partition)
        admitted = admission.admit(admission.replica(self._spec, partition), parameters)
        value = value_of(admitted, key, parameters, from_memory=from_memory)
        replica_info = admission.replica_info(admitted)
        if value is None:
            missed = miss(admitted, self._spec, key.plain, parameters.as_of_ms)
            if missed.status in WITH_LAG:
                self._served[admitted.lag] += 1
            raise Refused(missed, replica_info.source)
        if parameters.max_record_age_ms is not None:
            _require_young([value], parameters, replica_info)
        document = key_document(key, value, self._codec, replica_info.tail)
        if len(document) > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(f"The key's value takes {len(document)} bytes as JSON, more than an answer may.")
        self._served[admitted.lag] += 1
        return HttpAnswer(200, replica_info.json_head, document)


class Reads:
    """Answers reads of the replicas that this worker holds."""

    def __init__(self, admission: Admission, max_answer_bytes: int, disk_reads: DiskReads) -> None:
        self._admission = admission
        self._disk_reads = disk_reads
        self._max_answer_bytes = max_answer_bytes
        stores = admission.stores
        self._key_forms = {name: key_forms(spec, len(stores)) for name, spec in stores.items()}
        texts = {name: spec.with_text_numbers for name, spec in stores.items()}
        self._text_key_forms = {name: key_forms(spec, len(stores)) for name, spec in texts.items()}

    def key_forms(self, store: str, parameters: ReadParameters) -> KeyForms:
        """The forms of a store's keys; raises ``UnknownStore``."""
        name = self._admission.spec(store).name
        return (self._text_key_forms if parameters.numbers == "text" else self._key_forms)[name]

    def key(self, store: str, parameters: ReadParameters) -> KeyRead:
        """The prepared read for ``GET /v1/stores/{store}/keys/{key}``; raises ``Problem``."""
        spec = parameters.written(self._admission.spec(store))
        return KeyRead(self._admission, spec, self.key_forms(store, parameters), parameters)

    async def bring(self, store: str, segment: bytes, parameters: ReadParameters) -> None:
        """Return once memory knows of the key that is to be read; raises ``Problem`` as the read would."""
        key = self.key_forms(store, parameters)(segment)
        spec = self._admission.spec(store)
        partition = self._admission.agreed_partition(spec, key.partition, parameters.partition)
        await self._disk_reads.bring(self._sought(spec, partition, [key.plain], parameters))

    def lookup(self, replica: Replica, key: KeyForm, parameters: ReadParameters) -> Found:
        """A replica's result for a key, including a proven miss; raises ``Refused``."""
        admitted = self._admission.admit(replica, parameters)
        found = Found(value_of(admitted, key, parameters), self._admission.replica_info(admitted))
        if found.value is None:
            problem = why_unproven(admitted, parameters.written(replica.spec), key.plain)
            if problem is not None:
                raise Refused(problem, found.replica_info.source)
        return found

    def batch_spec(self, store: str, parameters: ReadParameters) -> StoreSpec:
        """The specification of a store whose keys a batch may have; raises ``UnknownStore`` or
        ``WrongStoreKind``."""
        spec = parameters.written(self._admission.spec(store))
        require_kind(spec, *SINGLE_VALUE_KINDS)
        return spec

    def locate(self, spec: StoreSpec, keys: Sequence[Any], parameters: ReadParameters) -> LocatedKeys:
        """A small batch's keys by partition."""
        plains, faults = read_plain_keys(spec.key_codec, keys)
        located = LocatedKeys(len(keys), faults)
        partition_of = self._admission.partitioning(spec, parameters.partition)
        deque(located.placing(plains, partition_of), maxlen=0)
        return located

    async def locate_in_turns(self, spec: StoreSpec, keys: BatchKeys, parameters: ReadParameters) -> LocatedKeys:
        """The same for keys of any number and length."""
        plains, faults = await read_plain(spec.key_codec, keys)
        located = LocatedKeys(len(keys.values), faults)
        partition_of = self._admission.partitioning(spec, parameters.partition)
        await in_turns(located.placing(plains, partition_of))
        return located

    async def batch_in_turns(
        self,
        spec: StoreSpec,
        located: LocatedKeys,
        parameters: ReadParameters,
        memory: Held,
        only: Set[int] | None = None,
    ) -> Batched:
        """Read several keys, ``only`` those at some places; the results of others are None.

        They may be of any number and size, and are held in ``memory`` from when they are read.
        """
        await self._disk_reads.bring(
            one
            for partition, (_, plains) in located.at(only)
            for one in self._sought(spec, partition, plains, parameters)
        )
        batched = Batched.of(located)
        await in_turns(_holding(memory, self.batching(batched, spec, located, parameters, only)))
        return batched

    def are_in_memory(self, spec: StoreSpec, located: LocatedKeys, parameters: ReadParameters) -> bool:
        """Whether a batch's keys are few enough, and can all be read without a disk."""
        if not self._disk_reads.are_likely():
            return True
        return located.count <= _MAX_TESTED_AT_ONCE and all(
            not_in_memory(store, key) is None
            for partition, (_, plains) in located.at(None)
            for store, key in self._sought(spec, partition, plains, parameters)
        )

    def _sought(
        self, spec: StoreSpec, partition: int, plains: list[bytes], parameters: ReadParameters
    ) -> Iterator[tuple[StateStore, bytes]]:
        """Where the reads of one partition's keys begin, if it has a replica here."""
        replica = self._admission.held(spec, partition)
        if replica is not None:
            store, keys = replica.view.store, replica.spec.stored_keys
            yield from ((store, sought(keys, plain, parameters)) for plain in plains)

    def batching(
        self,
        batched: Batched,
        spec: StoreSpec,
        located: LocatedKeys,
        parameters: ReadParameters,
        only: Set[int] | None = None,
    ) -> Iterator[int]:
        """Fill in the results, those of each partition together as far as they take no longer than a turn of the
        event loop; yields the bytes of all results so far after each. A key that is repeated is read once."""
        taken_bytes = 0
        for partition, (all_indices, all_plains) in located.at(only):
            indices, plains, repeats = without_repeats(all_indices, all_plains)
            at = 0
            while at < len(plains):
                found = self._batched(spec, partition, plains[at:], parameters, taken_bytes)
                taken_bytes += sum([len(body) for _, body in found.results])
                require_size(taken_bytes, self._max_answer_bytes)
                batched.waiting.extend(indices[at + i] for i in found.waiting)
                batched.lags.update(found.lags)
                for index, result in zip(indices[at:], found.results, strict=False):
                    batched.results[index] = result
                at += len(found.results)
                yield taken_bytes
            for index, first in repeats:
                batched.results[index] = batched.results[first]
                taken_bytes += len(batched.results[index][1])
            require_size(taken_bytes, self._max_answer_bytes)
            if repeats:
                waiting = set(batched.waiting)
                batched.waiting.extend(index for index, first in repeats if first in waiting)
                yield taken_bytes

    def _batched(
        self, spec: StoreSpec, partition: int, plains: list[bytes], parameters: ReadParameters, taken_bytes: int
    ) -> Batched:
        """One partition's results for the first of several keys, or for all why it may not answer; other results
        have taken so many bytes."""
        try:
            require_versions(spec, parameters)
            admitted = self._admission.admit(self._admission.replica(spec, partition), parameters)
        except Refused as refused:
            return _refused(len(plains), refused.answer(), refused.may_wait)
        except Problem as problem:
            return _refused(len(plains), problem_answer(problem), False)
        try:
            values = values_of(admitted, plains, parameters, self._max_answer_bytes, taken_bytes)
            replica_info = self._admission.replica_info(admitted)
        except NotReady as problem:
            return _refused(len(plains), problem_answer(problem), True)
        except Refused as refused:
            return _refused(len(plains), refused.answer(), refused.may_wait)
        documents, faults = _documents(spec, plains[: len(values)], values, replica_info)
        batched = Batched([(200, document) for document in documents], [], set())
        for index, fault in faults.items():
            batched.refuse(index, fault)
        for index in [index for index, value in enumerate(values) if value is None]:
            missed = Refused(miss(admitted, spec, plains[index], parameters.as_of_ms), replica_info.source)
            batched.refuse(index, missed)
        if parameters.max_record_age_ms is not None:
            for index, value in enumerate(values):
                try:
                    _require_young([value] if value is not None else [], parameters, replica_info)
                except Refused as refused:
                    batched.refuse(index, refused)
        if not WITH_LAG.isdisjoint(status for status, _ in batched.results):
            batched.lags.add(admitted.lag)
        return batched


def _documents(
    spec: StoreSpec, plains: list[bytes], values: list[bytes | None], replica_info: EncodedReplicaInfo
) -> tuple[list[bytes], dict[int, Refused]]:
    """The documents of several keys, and by their places why some cannot be written yet."""
    try:
        return key_documents(spec, plains, values, replica_info.tail), {}
    except SchemaUnavailable:
        documents, faults = [], {}
    for index, (plain, value) in enumerate(zip(plains, values, strict=True)):
        try:
            documents += key_documents(spec, [plain], [value], replica_info.tail)
        except SchemaUnavailable as problem:
            documents.append(b"")
            faults[index] = Refused(problem, replica_info.source)
    return documents, faults


def _require_young(stamped: Sequence[bytes], parameters: ReadParameters, replica_info: EncodedReplicaInfo) -> None:
    try:
        require_young([timestamp_ms_of(value) for value in stamped], parameters)
    except RecordTooOld as problem:
        raise Refused(problem, replica_info.source) from None


def _holding(memory: Held, steps: Iterable[int]) -> Iterator[None]:
    """Hold what has been read after each step; raises ``Overloaded``."""
    held_bytes = 0
    for taken_bytes in steps:
        memory.take(taken_bytes - held_bytes)
        held_bytes = taken_bytes
        yield


def _refused(count: int, answer: HttpAnswer, may_wait: bool) -> Batched:
    return Batched([key_result(answer)] * count, list(range(count)) if may_wait else [], set())
