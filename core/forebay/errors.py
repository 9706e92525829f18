"""Every error that forebay raises.

ForebayError
├── ConfigurationError          what an operator gave cannot be used
│   ├── TopologyError
│   ├── SettingError
│   ├── AccessDenied            this user may not use a file; the message names its owner
│   ├── ExtraMissing            a command or a changelog needs packages that are not installed
│   ├── StateMisplaced          (worker tier) stores are not at their ordinals, and may not be moved
│   └── Occupied                another process has it; a command exits with 1
│       ├── StateDirectoryLocked
│       ├── ListenAddressInUse
│       └── AdvertisedByAnother (worker tier)
├── ChangelogError              the log refuses, or cannot be reached
│   ├── ChangelogUnreachable    a command exits with 1
│   │   └── ChangelogUnusable   the disk of a SQLite log refuses
│   ├── TopicMissing
│   ├── TopicRefused
│   ├── PartitionCountMismatch
│   │   └── PartitionsAdded     the log was given more than the topology has
│   ├── ChangelogElsewhere
│   ├── BatchConflict
│   └── RecordDamaged           a record of the log is not as it was written
├── BadRecord                   (worker tier) a record does not fit its store's codecs
├── CheckpointError             (worker tier) a .checkpoint file is malformed
├── RelocationError             (worker tier) the disk refuses to move a store
├── UnreadableMessage           (worker tier) a group message is damaged, or no worker wrote it
│   └── UnsupportedVersion      (worker tier) a group message needs a newer reader
├── AnswerMismatch              (client) answers name another store or key than the request; none is returned
├── ClientUnusable              (client) it is closed, or belongs to another process or event loop
├── SinkError                   a row, a batch or a query that the sink cannot take
└── Problem                     an error answer to a REST client (RFC 9457)
    ├── 400  BadKey, BadParameter, BadRequest, HostNotAllowed
    ├── 401  Unauthenticated
    ├── 403  Forbidden
    ├── 404  UnknownKey, UnknownStore, UnknownPath
    ├── 405  MethodNotAllowed
    ├── 409  WrongStoreKind, PositionOfAnotherLog, UnknownPartitioner
    ├── 410  HistoryExpired
    ├── 412  LagExceedsTolerance, RecordTooOld, PositionNotReached, NotActive
    ├── 413  BodyTooLarge, AnswerTooLarge
    ├── 421  NotHostedHere
    ├── 429  Overloaded
    ├── 500  InternalError
    ├── 501  TransferCodingNotSupported
    ├── 503  NotReady, LogDiverged, PartitionerMismatch, PartitionerMissing, SchemaUnavailable, NoReplica
    ├── 504  DeadlineExceeded
    └── 505  HttpVersionNotSupported
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from forebay.lag import Lag

PROBLEM_MEDIA_TYPE = "application/problem+json"


class ForebayError(Exception):
    """The root of everything forebay raises on purpose.

    ``exit_status`` is that of a command that fails with it: 1 if trying again may help, otherwise 2.
    """

    exit_status: int = 2


class ConfigurationError(ForebayError):
    """A setting, file or directory that an operator gave cannot be used; the message names the remedy."""


class TopologyError(ConfigurationError):
    """The topology file cannot be read or contradicts itself."""


class SettingError(ConfigurationError):
    """A setting's value has the wrong type or is out of range."""


class AccessDenied(ConfigurationError):
    """This user may not use a file or a directory; run as the user that owns it, which the message names."""


class ExtraMissing(ConfigurationError):
    """A command or a changelog needs packages of an extra that is not installed; the message names the extra."""


class Occupied(ConfigurationError):
    """Another process has what this one needs; it may be about to end."""

    exit_status = 1


class StateDirectoryLocked(Occupied):
    """Another process owns the state directory; give this one a directory of its own."""


class ListenAddressInUse(Occupied):
    """The listen address is taken or does not belong to this host; choose another with ``--listen``."""


class AdvertisedByAnother(Occupied):
    """A live worker advertises the same address: another one, or this one's predecessor until its lease ends."""


class ChangelogError(ForebayError):
    """The changelog refuses an operation or cannot be reached."""


class ChangelogUnreachable(ChangelogError):
    """No broker answers; what is on disk can be served meanwhile."""

    exit_status = 1


class ChangelogUnusable(ChangelogUnreachable):
    """The disk does not let a SQLite log be read or written, or its file is gone."""


class RecordDamaged(ChangelogError):
    """A record of a SQLite log is not as it was written; restore the log from a backup, or reset and refill it."""


class TopicRefused(ChangelogError):
    """With the topic's configuration, a store built from it would lack records; the message names the remedy."""


class TopicMissing(ChangelogError):
    """No such topic; create it with the sink, a worker or ``forebay topology apply``."""


class PartitionCountMismatch(ChangelogError):
    """The log has another number of partitions than the topology; a new count means a new store."""


class PartitionsAdded(PartitionCountMismatch):
    """The log was given more partitions than the topology has."""


class ChangelogElsewhere(ChangelogError):
    """A SQLite log is on another machine or on a network file system, where its locks do not work."""


class BatchConflict(ChangelogError):
    """A batch was repeated with other rows, two queries write under one name, or a partition's log is another than
    the one that was written before; nothing was written to it."""


class AnswerMismatch(ForebayError):
    """Answers over two connections name another store or key than the request; a proxy may mix them up."""

    exit_status = 1


class ClientUnusable(ForebayError):
    """A client was closed, or has a transport or SSL context of one process or event loop; make a client there."""


class SinkError(ForebayError):
    """A row, a batch or a query that the Spark sink cannot take; nothing of the batch was written."""


class Problem(ForebayError):
    """An error answer to a REST client, as RFC 9457 ``application/problem+json``.

    ``members`` become extra members of the JSON document, so they must be JSON values.
    ``retry_after_s`` becomes a ``Retry-After`` header, in whole seconds, and a member of the same name, since the
    problem of one key among several has no header.
    """

    status: int = 500
    name: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "The service failed"

    lag: Lag | None = None
    """How far behind the answering replica was; set on problems that a client received."""

    def __init__(self, detail: str, *, retry_after_s: int | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.members = members

    @property
    def type(self) -> str:
        """The problem's URN, ``urn:forebay:problem:<name>``."""
        return f"urn:forebay:problem:{self.name}"

    def document(self) -> dict[str, Any]:
        """The members of the problem document, in the order in which they are sent."""
        return {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **({} if self.retry_after_s is None else {"retry_after_s": self.retry_after_s}),
            **self.members,
        }

    def body(self) -> bytes:
        """The document as UTF-8 JSON."""
        return json.dumps(self.document(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class BadKey(Problem):
    """The key in the request cannot be decoded by the store's key codec."""

    status, name, title = 400, "bad-key", "The key cannot be decoded"


class BadParameter(Problem):
    """A query parameter is unknown, malformed, negative or out of range."""

    status, name, title = 400, "bad-parameter", "A parameter is not usable"


class BadRequest(Problem):
    """The request as a whole cannot be understood."""

    status, name, title = 400, "bad-request", "The request is not usable"


class HostNotAllowed(Problem):
    """The request names a host that is not this process's. The setting ``allowed_hosts`` lists those that are."""

    status, name, title = 400, "host-not-allowed", "The host is not this process's"


class Unauthenticated(Problem):
    """The request carries no credentials, or unknown ones. Send them in an ``Authorization`` header, or open an
    event stream with a ticket."""

    status, name, title = 401, "unauthenticated", "The request is not authenticated"


class Forbidden(Problem):
    """The credentials are known, but do not allow this request."""

    status, name, title = 403, "forbidden", "The request is not allowed"


class UnknownKey(Problem):
    """No such key, said by a replica that is consistent and meets the tolerance."""

    status, name, title = 404, "unknown-key", "The store has no such key"


class HistoryExpired(Problem):
    """The value that a key had at that time has expired."""

    status, name, title = 410, "history-expired", "The version is no longer kept"


class UnknownStore(Problem):
    """The topology has no such store."""

    status, name, title = 404, "unknown-store", "There is no such store"


class UnknownPath(Problem):
    """No route has this path."""

    status, name, title = 404, "unknown-path", "There is nothing at this path"


class MethodNotAllowed(Problem):
    """The route exists, under another method."""

    status, name, title = 405, "method-not-allowed", "The path does not support this method"


class WrongStoreKind(Problem):
    """The route reads stores of another kind."""

    status, name, title = 409, "wrong-store-kind", "The store is of another kind"


class PositionOfAnotherLog(Problem):
    """The ``min_position`` token belongs to another log, such as the one before a reset, or to a part of the log
    that was lost.
    """

    status, name, title = 409, "position-of-another-log", "The position belongs to another log"


class UnknownPartitioner(Problem):
    """The store's partitioner is ``unknown``, so the partitions of its keys cannot be computed."""

    status, name, title = 409, "unknown-partitioner", "A key's partition is not known"


class LagExceedsTolerance(Problem):
    """The replica is, or may be, further behind than the request tolerates."""

    status, name, title = 412, "lag-exceeds-tolerance", "The replica lags more than tolerated"


class RecordTooOld(Problem):
    """What the replica holds was written longer ago than the request tolerates."""

    status, name, title = 412, "record-too-old", "The value is older than tolerated"


class PositionNotReached(Problem):
    """The replica has not yet applied the log up to ``min_position``."""

    status, name, title = 412, "position-not-reached", "The replica has not reached the position"


class NotActive(Problem):
    """``require_active`` was asked for, and the replica is not a running active."""

    status, name, title = 412, "not-active", "The replica is not the active"


class NotHostedHere(Problem):
    """This worker holds no replica of the partition: ``active_host`` and ``standby_hosts`` do. Routers never pass
    this problem on."""

    status, name, title = 421, "not-hosted-here", "The partition is not held here"


class BodyTooLarge(Problem):
    """The request's body is longer than the path accepts."""

    status, name, title = 413, "body-too-large", "The body is too large"


class AnswerTooLarge(Problem):
    """The answer would be larger than 32 MiB or half of ``request_memory_bytes``, or that of a single key than
    64 MiB. Ask for fewer keys or entries at once.
    """

    status, name, title = 413, "answer-too-large", "The answer would be too large"


class Overloaded(Problem):
    """The process is at its limit of requests in flight or of open event streams, or every replica that could
    answer is at its request limit.
    """

    status, name, title = 429, "overloaded", "Too many requests in flight"


class InternalError(Problem):
    """The service failed. Its log says why."""


class TransferCodingNotSupported(Problem):
    """The request's body is in a transfer coding other than ``chunked``."""

    status, name, title = 501, "transfer-coding-not-supported", "The transfer coding is not supported"


class HttpVersionNotSupported(Problem):
    """The request is of a version of HTTP other than 1.x, or asks for a list or a stream over HTTP/1.0."""

    status, name, title = 505, "http-version-not-supported", "The version of HTTP is not supported"


class NotReady(Problem):
    """The process cannot answer yet, or no longer. The replica is in the middle of a replay, or its log is being
    filled, or nobody has written to it yet: a missing key then proves nothing. Or the replica's store is being
    opened or closed. Or no worker, or no assignment, is known yet. Or the process is shutting down. ``/readyz``
    also uses it for every other reason, such as a full disk.
    """

    status, name, title = 503, "not-ready", "Not ready to answer"


class LogDiverged(Problem):
    """The replica can no longer follow the log, and is being rebuilt. The log was replaced or truncated, or has
    dropped tombstones that the replica never saw, or the replica's store was lost.
    """

    status, name, title = 503, "log-diverged", "The replica is being rebuilt"


class PartitionerMismatch(Problem):
    """Some keys are in other partitions than the store's partitioner computes, so a miss proves nothing, and no
    lag can be proven. A wait or another replica does not help.
    """

    status, name, title = 503, "partitioner-mismatch", "Keys are not where the partitioner puts them"


class SchemaUnavailable(Problem):
    """The value has a schema that this worker has not seen yet, and the registry has not given it so far. Values
    of other schemas are answered.
    """

    status, name, title = 503, "schema-unavailable", "The value's schema is not known yet"


class PartitionerMissing(Problem, TopologyError):
    """The store's partitioner is not installed in this process, so it cannot tell where keys are."""

    status, name, title = 503, "partitioner-missing", "The partitioner is not installed"


class NoReplica(Problem):
    """No replica could answer: none is known, none could be reached, or those that were asked are not ready, full,
    or refuse. If all of them refuse with 412, the answer is 412 instead. ``attempts`` lists which replicas were
    asked and what they answered. If all that answered gave one type of problem, ``detail`` quotes them.
    """

    status, name, title = 503, "no-replica", "No replica answered"


class DeadlineExceeded(Problem):
    """``timeout_ms`` passed before there was an answer."""

    status, name, title = 504, "deadline", "The deadline passed"
