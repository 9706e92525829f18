"""Reads keys from a replica's store, and says what it proves that a key is not there."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from forebay.bounded_cache import of_one_store
from forebay.clock import epoch_ms
from forebay.codecs.keys import from_segment
from forebay.codecs.values import ValueCodec, all_to_json
from forebay.errors import BadParameter, HistoryExpired, NotReady, Problem, RecordTooOld, UnknownKey
from forebay.logs import LogThrottle
from forebay.state_store import StateStore, StoreCorrupted
from forebay.store_spec import StoreSpec
from forebay.stored_keys import TIME_SIZE, StoredKeys, successor
from forebay.stored_values import STAMP_SIZE, contents, decode_version, timestamp_ms_of, timestamps_ms
from forebay.wire.batches import require_size
from forebay.wire.parameters import ReadParameters
from forebay_worker.reads.admission import Admitted
from forebay_worker.state.rocksdb import NotInMemory, RocksDbStore

log = logging.getLogger(__name__)

Pair = tuple[bytes, bytes]
"""A stored key and its value."""

_HIGHEST = b"\xff" * TIME_SIZE
_FIRST_CHUNK, _LARGEST_CHUNK = 8, 128
"""Entries that are read together: their size is unknown before."""
_TURN_KEYS, _TURN_BYTES = 125, 256 << 10
"""What is read of a replica in a turn of the event loop: of a batch's keys those without a value take longest."""
_KEY_COST = 16
"""How many bytes of a value take as long as one of a key that has none, and is repeated in a problem."""
_FIRST_TOGETHER, _MAX_TOGETHER = 1, 32
"""Values of a batch that are read with one call: their size is unknown before."""
_LOGGED = LogThrottle()
"""A store that cannot be read would otherwise be logged with every read of it."""


class KeyForm(NamedTuple):
    """One key of a store; ``partition`` is None if the partitioner is unknown."""

    plain: bytes
    partition: int | None
    stored: bytes
    """Its stored key, or what those of its entries begin with."""
    document: bytes
    """How the documents of its answers begin."""


KeyForms = Callable[[bytes], KeyForm]
"""The forms of a key by its URL segment as received; raises ``BadKey``."""


def key_forms(spec: StoreSpec, stores: int) -> KeyForms:
    """Those of a store which is one of so many."""

    def work_out(segment: bytes) -> KeyForm:
        plain = from_segment(spec.key_codec, segment)
        partition = None if spec.stream_partitioner is None else spec.partition_of(plain)
        document = b'{"store":"%b","key":%b' % (spec.name_bytes, spec.key_codec.to_json(plain))
        return KeyForm(plain, partition, spec.stored_keys.prefix(plain), document)

    return of_one_store(work_out, stores)


def scanned(
    admitted: Admitted, start: bytes, end: bytes, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """A scan of a replica's store; raises ``NotReady``."""
    store = admitted.view.store
    try:
        yield from store.scan(start, end, reverse=reverse)
    except Exception as error:
        raise _unreadable(admitted, store, error) from error


def scanned_in_chunks(
    admitted: Admitted, start: bytes, end: bytes, *, reverse: bool, most: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """The same in chunks of a growing number of entries, of which the first has this many at most: each takes a
    fraction of a millisecond, unless a single entry takes longer."""
    store, size = admitted.view.store, min(_FIRST_CHUNK, most)
    chunk: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    try:
        for entry in store.scan(start, end, reverse=reverse):
            chunk.append(entry)
            size_bytes += len(entry[1])
            if len(chunk) == size or size_bytes >= _TURN_BYTES:
                yield chunk
                size, chunk, size_bytes = min(_LARGEST_CHUNK, 2 * size), [], 0
        if chunk:
            yield chunk
    except Exception as error:
        raise _unreadable(admitted, store, error) from error


def value_of(
    admitted: Admitted, key: KeyForm, parameters: ReadParameters, *, from_memory: bool = False
) -> bytes | None:
    """The stamped value of a key, at the requested time if it has versions, of the highest order if it has
    orders.

    Raises ``NotReady``, and if it is to be ``from_memory`` ``NotInMemory``.
    """
    store, keys = admitted.view.store, admitted.view.spec.stored_keys
    value: bytes | None = None
    try:
        if from_memory and isinstance(store, RocksDbStore):
            value = store.get_from_memory(sought(keys, key.plain, parameters) if keys.times else key.stored)
        elif not keys.times:
            value = store.get(key.stored)
    except NotInMemory:
        raise
    except Exception as error:
        raise _unreadable(admitted, store, error) from error
    if keys.times:
        return _version(admitted, key.plain, parameters)
    if value is not None and admitted.expired_ms is not None:
        return unexpired(value, admitted.expired_for(parameters))
    return value


def unexpired(stamped: bytes | None, expired_ms: int | None) -> bytes | None:
    """A value, None if it has expired; ``expired_ms`` is the last timestamp of those that have."""
    if stamped is None or expired_ms is None or timestamp_ms_of(stamped) > expired_ms:
        return stamped
    return None


def all_unexpired(pairs: list[Pair], expired_ms: int | None) -> list[Pair]:
    """Those of some entries of which the values have not expired."""
    if expired_ms is None:
        return pairs
    return [pair for pair in pairs if timestamp_ms_of(pair[1]) > expired_ms]


def sought(keys: StoredKeys, plain: bytes, parameters: ReadParameters) -> bytes:
    """The stored key at which the read of a key's value begins."""
    if not keys.times:
        return keys.prefix(plain)
    if parameters.as_of_ms is None:
        return keys.prefix(plain) + _HIGHEST
    return keys.stored(plain, parameters.as_of_ms)


def _version(admitted: Admitted, plain: bytes, parameters: ReadParameters) -> bytes | None:
    keys = admitted.view.spec.stored_keys
    end = (
        keys.stored(plain, parameters.as_of_ms + 1)
        if parameters.as_of_ms is not None
        else successor(keys.prefix(plain))
    )
    kind = admitted.view.spec.store_kind
    found = kind.newest(scanned(admitted, keys.prefix(plain), end, reverse=True))
    if found is None or is_forgotten(admitted, plain, parameters.as_of_ms):
        return None
    return decode_version(found[1]) if kind.last_entry_wins else found[1]


def newest_version(admitted: Admitted, prefix: bytes) -> tuple[bytes, bytes] | None:
    """The stored key of a key's newest version, and its value; None if there is none or it deletes the key."""
    for stored, version in scanned(admitted, prefix, successor(prefix), reverse=True):
        value = decode_version(version)
        return None if value is None else (stored, value)
    return None


def oldest_version(admitted: Admitted, plain: bytes) -> bytes | None:
    """The stored key of a key's oldest version that is sure to be kept; None if it has none that old.

    That is the one in force when the store's history begins; those before it may have been deleted.
    """
    begins_ms = admitted.replica.view.history_begins_ms
    if begins_ms is None:
        return None
    keys = admitted.view.spec.stored_keys
    versions = scanned(admitted, keys.prefix(plain), keys.stored(plain, begins_ms + 1), reverse=True)
    return next((stored for stored, _ in versions), None)


def is_forgotten(admitted: Admitted, plain: bytes, as_of_ms: int | None) -> bool:
    """Whether a key's value at a time has expired."""
    if as_of_ms is None:
        return False
    begins_ms = admitted.replica.view.history_begins_ms
    if begins_ms is None or as_of_ms >= begins_ms:
        return False
    oldest = oldest_version(admitted, plain)
    return oldest is not None and admitted.view.spec.stored_keys.parse(oldest).times_ms[0] > as_of_ms


def _unreadable(admitted: Admitted, store: StateStore, error: Exception) -> Problem:
    """The problem for a store that cannot be read: it may just be closing, and another replica has it.

    A damaged one is rebuilt.
    """
    replica = admitted.replica
    if isinstance(error, StoreCorrupted):
        replica.on_corrupted(replica, store, str(error))
    name, task = replica.spec.name, replica.task
    if _LOGGED.allow(f"{name} {task} {error!r}"):
        # As text: a record that keeps the error keeps the read, and so the store, open.
        log.warning("%s of task %s could not be read: %s", name, task, repr(error))
    return NotReady("The store could not be read; it may be closing or being reopened.", retry_after_s=1)


def values_of(
    admitted: Admitted, plains: list[bytes], parameters: ReadParameters, max_bytes: int, others_bytes: int = 0
) -> list[bytes | None]:
    """The stamped values of the first of several keys, at least one: as many as a turn of the event loop has time
    for.

    Raises ``NotReady``, and ``AnswerTooLarge`` if they and the others of the answer take more than the most.
    """
    keys, cost = admitted.view.spec.stored_keys, admitted.view.spec.byte_cost
    found: list[bytes | None] = []
    size, taken_bytes, key_bytes = _FIRST_TOGETHER, 0, 0
    while len(found) < min(len(plains), _TURN_KEYS) and cost * taken_bytes + _KEY_COST * key_bytes < _TURN_BYTES:
        chunk = plains[len(found) : len(found) + size]
        if keys.times:
            values = [_version(admitted, plain, parameters) for plain in chunk]
        else:
            stored = [keys.prefix(plain) for plain in chunk]
            values = stored_values(admitted, stored, admitted.expired_for(parameters))
        found += values
        taken_bytes += sum([len(value) for value in values if value is not None])
        require_size(others_bytes + taken_bytes, max_bytes)
        key_bytes += sum(map(len, chunk))
        size = _MAX_TOGETHER
    return found


def stored_values(admitted: Admitted, stored: list[bytes], expired_ms: int | None) -> list[bytes | None]:
    """The values of several stored keys that have not expired; raises ``NotReady``."""
    store = admitted.view.store
    try:
        values = store.get_many(stored)
    except Exception as error:
        raise _unreadable(admitted, store, error) from error
    return values if expired_ms is None else [unexpired(value, expired_ms) for value in values]


def require_versions(spec: StoreSpec, parameters: ReadParameters) -> None:
    """Raise ``BadParameter`` if a time is requested from a store that keeps no versions."""
    if parameters.as_of_ms is not None and not spec.store_kind.keeps_versions:
        raise BadParameter(
            f"The store {spec.name!r} keeps no versions; only versioned stores take as_of.", parameter="as_of"
        )


def require_young(timestamps_ms: Sequence[int], parameters: ReadParameters) -> None:
    """Raise ``RecordTooOld`` if a record with one of some timestamps is older than a read tolerates."""
    if parameters.max_record_age_ms is None or not timestamps_ms:
        return
    oldest_ms = min(timestamps_ms)
    age_ms = int(epoch_ms()) - oldest_ms
    if age_ms > parameters.max_record_age_ms:
        raise RecordTooOld(
            f"A value was written {age_ms} ms ago, and max_record_age_ms is {parameters.max_record_age_ms}.",
            timestamp_ms=oldest_ms,
        )


def key_document(key: KeyForm, stamped: bytes | None, codec: ValueCodec, tail: bytes) -> bytes:
    """The JSON of one key's result, without ``value`` if there is none; ``tail`` is that of its provenance."""
    if stamped is None:
        return key.document + tail
    shown = codec.to_json(stamped[STAMP_SIZE:])
    return b'%b,"value":%b,"timestamp_ms":%d%b' % (key.document, shown, timestamp_ms_of(stamped), tail)


def key_documents(spec: StoreSpec, plains: list[bytes], values: list[bytes | None], tail: bytes) -> list[bytes]:
    """The same for several keys at a fraction of the cost, empty if there is no value."""
    key_form, keys = all_to_json(spec.key_codec, plains)
    found = [value for value in values if value is not None]
    value_form, shown = all_to_json(spec.value_codec, contents(found))
    form = b'{"store":"%b","key":%b,"value":%b,"timestamp_ms":%%d%b' % (
        spec.name_bytes,
        key_form,
        value_form,
        tail.replace(b"%", b"%%"),
    )
    next_shown = zip(shown, timestamps_ms(found), strict=True)
    return [
        b"" if value is None else form % (key, *next(next_shown)) for key, value in zip(keys, values, strict=True)
    ]


def miss(admitted: Admitted, spec: StoreSpec, plain: bytes, as_of_ms: int | None = None) -> Problem:
    """The problem for a missing key: ``UnknownKey``, or why that cannot be said."""
    problem = why_unproven(admitted, spec, plain, as_of_ms)
    if problem is not None:
        return problem
    then = "" if as_of_ms is None else f" at {as_of_ms} ms since 1970"
    detail = f"The store {spec.name!r} has no key {_shown(spec, plain)}{then}."
    return UnknownKey(detail, store=spec.name, key=_key_of(spec, plain))


def why_unproven(
    admitted: Admitted, spec: StoreSpec, plain: bytes | None, as_of_ms: int | None = None
) -> Problem | None:
    """Why it proves nothing that the replica does not have a key, None if it proves that there is none.

    Without a key it is about all that a list leaves out.
    """
    # As it is now, after its content was read; ``admitted`` is as it was before.
    view = admitted.replica.view
    members: dict[str, Any] = {"store": spec.name}
    if plain is not None:
        members["key"] = _key_of(spec, plain)
    doubt = view.doubt or admitted.doubt
    if doubt is not None:
        return doubt.problem(doubt.text, **members)
    if view.filling:
        return NotReady(
            f"The log of {spec.name!r} is still being filled with what its source holds, so a missing key proves "
            "nothing.",
            retry_after_s=1,
            **members,
        )
    if not admitted.view.knows_all_keys or not view.consistent:
        return NotReady(
            "The replica is in the middle of a replay, where a missing key proves nothing.",
            retry_after_s=1,
            **members,
        )
    if view.unwritten:
        return NotReady(
            f"Nobody has written to this partition of {spec.name!r} yet, so a missing key proves nothing. Start "
            "the store's query or tap. A query that writes by Spark's own Kafka sink needs sink.heartbeats.",
            retry_after_s=1,
            **members,
        )
    try:
        forgotten = plain is not None and is_forgotten(admitted, plain, as_of_ms)
    except NotReady as problem:
        return problem
    if plain is not None and forgotten:
        return HistoryExpired(
            f"The value of {_shown(spec, plain)} at that time has expired: the store {spec.name!r} keeps "
            f"{spec.history_retention_ms} ms of history.",
            **members,
        )
    return None


def _key_of(spec: StoreSpec, plain: bytes) -> Any:
    return json.loads(spec.key_codec.to_json(plain))


def _shown(spec: StoreSpec, plain: bytes) -> str:
    """A key as an answer has it."""
    return spec.key_codec.to_json(plain).decode()
