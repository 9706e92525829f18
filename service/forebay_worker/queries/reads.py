"""Reads: one key, and several keys.

Progress is taken before the content, so that the lag is never understated; the position token is made from what
was being applied after it, so that the token bounds from above what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from forebay.codecs import from_segment
from forebay.errors import NotReady, Problem, UnknownKey
from forebay.rest.answers import Answer, Told, problem_answer
from forebay.rest.parameters import ReadParameters
from forebay.rest.scans import require_kind
from forebay.topology import StoreSpec
from forebay_worker.queries.admission import Admission, Admitted, Refused
from forebay_worker.queries.values import key_document, require_versions, value_of, values_of
from forebay_worker.tasks.replica import Replica


class Found(NamedTuple):
    """The stored value of a key, None where there is none, and where it is from."""

    value: bytes | None
    told: Told


class Batched(NamedTuple):
    """One key's answer or problem, and whether its replica may soon have a better one."""

    answer: Answer
    may_wait: bool


class KeyRead:
    """A read of one key but for the key: what its store and parameters say, worked out once for all alike."""

    __slots__ = ("_admission", "_spec", "parameters")

    def __init__(self, admission: Admission, spec: StoreSpec, parameters: ReadParameters) -> None:
        require_kind(spec, "key-value", "versioned")
        require_versions(spec, parameters)
        self._admission = admission
        self._spec = spec
        self.parameters = parameters

    def answer(self, segment: bytes) -> Answer:
        """Answer for a key as it stands in the path; raises ``Problem`` or ``Refused``."""
        admission, spec, parameters = self._admission, self._spec, self.parameters
        plain = from_segment(spec.key_codec, segment)
        replica = admission.replica(spec, admission.partition(spec, plain, parameters.partition))
        admitted = admission.admit(replica, parameters)
        value = value_of(replica, plain, parameters)
        told = admission.told(admitted)
        if value is None:
            raise Refused(admission.miss(admitted, plain, parameters.as_of_ms), told.source)
        return Answer(200, told.json_head, key_document(spec, plain, value, told.members))


class Reads:
    """Answers reads of the replicas that this worker holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def key(self, store: str, parameters: ReadParameters) -> KeyRead:
        """How ``GET /v1/stores/{store}/keys/{key}`` is answered; raises ``Problem``."""
        return KeyRead(self._admission, self._admission.spec(store), parameters)

    def look(self, replica: Replica, plain: bytes, parameters: ReadParameters) -> Found:
        """What a replica has of a key, also where it proves that there is nothing; raises ``Refused``."""
        admitted = self._admission.admit(replica, parameters)
        found = Found(value_of(replica, plain, parameters), self._admission.told(admitted))
        if found.value is None:
            problem = self._admission.miss(admitted, plain)
            if not isinstance(problem, UnknownKey):
                raise Refused(problem, found.told.source)
        return found

    def batch(self, store: str, keys: Sequence[Any], parameters: ReadParameters) -> list[Batched]:
        """One answer or problem per key, in order; raises ``UnknownStore`` and ``WrongStoreKind`` for all."""
        spec = self._admission.spec(store)
        require_kind(spec, "key-value", "versioned")
        results: dict[int, Batched] = {}
        places: dict[int, list[tuple[int, bytes]]] = {}
        for index, key in enumerate(keys):
            try:
                plain = spec.key_codec.from_json(key)
                partition = self._admission.partition(spec, plain, parameters.partition)
            except Problem as problem:
                results[index] = Batched(problem_answer(problem), False)
            else:
                places.setdefault(partition, []).append((index, plain))
        for partition, placed in places.items():
            found = self._batched(spec, partition, [plain for _, plain in placed], parameters)
            results |= {index: result for (index, _), result in zip(placed, found, strict=True)}
        return [results[index] for index in range(len(keys))]

    def _batched(
        self, spec: StoreSpec, partition: int, plains: list[bytes], parameters: ReadParameters
    ) -> list[Batched]:
        """What one partition has of several keys, or why it may not answer: judged once for all of them."""
        try:
            require_versions(spec, parameters)
            admitted = self._admission.admit(self._admission.replica(spec, partition), parameters)
        except Refused as refused:
            return [Batched(refused.answer(), refused.may_wait)] * len(plains)
        except Problem as problem:
            return [Batched(problem_answer(problem), False)] * len(plains)
        try:
            values = values_of(admitted.replica, plains, parameters)
        except NotReady as problem:
            return [Batched(problem_answer(problem), True)] * len(plains)
        told = self._admission.told(admitted)
        return [
            self._batched_miss(admitted, plain, parameters, told)
            if value is None
            else Batched(Answer(200, b"", key_document(spec, plain, value, told.members)), False)
            for plain, value in zip(plains, values, strict=True)
        ]

    def _batched_miss(self, admitted: Admitted, plain: bytes, parameters: ReadParameters, told: Told) -> Batched:
        refused = Refused(self._admission.miss(admitted, plain, parameters.as_of_ms), told.source)
        return Batched(refused.answer(), refused.may_wait)
