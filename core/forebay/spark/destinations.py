"""Where a micro-batch's rows go: each kind of changelog has its own way in."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from forebay.changelog import Changelog
from forebay.changelog.sqlite.changelog import SqliteChangelog, naming
from forebay.changelog.sqlite.partition import differs, newest_batch, rows_of_batch
from forebay.errors import SinkError
from forebay.spark.compaction import Compaction
from forebay.spark.executor import Target, keyed_records, write_rows
from forebay.task_ids import TopicPartition
from forebay.topology import StoreSpec

if TYPE_CHECKING:
    from forebay.changelog.kafka.changelog import KafkaChangelog

T = TypeVar("T")

_REDACTED = "spark.sql.redaction.options.regex"
_SECRETS = r"ssl\.(keystore|truststore|key)\.(key|password)|sasl\.jaas\.config"
_REFUSAL = re.compile(r"WriteRefused: (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_TOO_LARGE = re.compile(r"RecordTooLargeException|max\.request\.size")


@dataclass(frozen=True)
class BatchId:
    """The batch and query that write, and the writer's name; ``ordered`` if the rows of a key are in order."""

    query_id: str
    number: int
    writer: str
    ordered: bool


class Destination(Protocol):
    """Writes a batch's placed rows: each partition's in one task, sorted by key and order."""

    claims_first: bool
    """Whether a heartbeat before each batch must confirm that the query is still the writer of its name."""

    def check(self, session: SparkSession) -> None:
        """Raise ``SinkError`` for a session that cannot write there."""
        ...

    def compaction(self, specs: Iterable[StoreSpec]) -> Compaction:
        """The compaction of those of these stores that nobody else compacts."""
        ...

    def write(self, rows: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all rows; raises ``SinkError``."""
        ...


class SqliteDestination:
    """One task writes a partition, its rows and marker in one transaction: a repeated batch changes nothing."""

    claims_first = False
    """The rows' own transaction confirms it."""

    def __init__(self, changelog: SqliteChangelog) -> None:
        self._changelog = changelog
        self._newest: dict[tuple[str, str], int] = {}
        """By query and topic, the newest batch of which some rows may be in the log."""

    def check(self, session: SparkSession) -> None:
        """Any session will do; executors elsewhere notice it themselves and refuse."""

    def compaction(self, specs: Iterable[StoreSpec]) -> Compaction:
        """The compaction of all of them."""
        return Compaction(self._changelog, specs)

    def write(self, rows: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all rows; raises ``SinkError``."""
        target = Target(
            directory=str(self._changelog.directory),
            directory_id=self._changelog.directory_id,
            driver_host=socket.gethostname(),
            topic=spec.topic,
            writer=batch.writer,
            query_id=batch.query_id,
            batch_id=batch.number,
            write_name=batch.writer,
            ordered=batch.ordered,
            versioned=spec.kind == "versioned",
            latest=spec.latest_by is not None,
        )
        written = rows.mapInArrow(write_rows(target), "partition int, row_count bigint, next_offset bigint")
        repeats = batch.number <= self._newest_batch(spec, batch)
        self._newest[batch.query_id, spec.topic] = max(batch.number, self._newest_batch(spec, batch))
        has_rows = {row.partition for row in _refusing(spec, written.collect)}
        if repeats:
            self._check_absent(spec, batch, set(range(spec.partitions)) - has_rows)

    def _newest_batch(self, spec: StoreSpec, batch: BatchId) -> int:
        """The newest batch of this query that was begun; after a restart, that any partition has rows of."""
        known = self._newest.get((batch.query_id, spec.topic))
        if known is not None:
            return known
        newest = -1
        for partition in range(spec.partitions):
            path = self._changelog.path(TopicPartition(spec.topic, partition))
            with naming(path):
                found = newest_batch(path, batch.query_id, batch.writer)
            newest = newest if found is None else max(newest, found)
        return newest

    def _check_absent(self, spec: StoreSpec, batch: BatchId, partitions: set[int]) -> None:
        """Raise ``SinkError`` if an earlier attempt wrote rows where this one has none."""
        for partition in sorted(partitions):
            path = self._changelog.path(TopicPartition(spec.topic, partition))
            with naming(path):
                before = rows_of_batch(path, batch.query_id, batch.writer, batch.number)
            if before:
                raise SinkError(f"{spec.name}: {differs(path, batch.writer, batch.number, before, 0)}")


class KafkaDestination:
    """Spark's own Kafka sink: at least once, so a repeated batch appears twice and folds to the same state."""

    claims_first = True

    def __init__(self, changelog: KafkaChangelog) -> None:
        self._changelog = changelog
        self._options = changelog.kafka.spark()

    def compaction(self, specs: Iterable[StoreSpec]) -> Compaction:
        """The compaction of those with ``latest_by``: the brokers do not know what an order is."""
        return Compaction(self._changelog, [spec for spec in specs if spec.latest_by is not None])

    def check(self, session: SparkSession) -> None:
        """Refuse speculation: a lost attempt keeps producing, after what came later. Refuse to go without Spark's
        Kafka connector.

        Makes Spark redact the secrets among the options from its plans, event logs and user interface.
        """
        # Spark reads True and TRUE, too.
        if str(session.conf.get("spark.speculation", "false")).lower() == "true":
            raise SinkError(
                "A kafka:// changelog needs spark.speculation=false: a lost attempt would keep writing."
            )
        assert session._jvm is not None
        sources = session._jvm.org.apache.spark.sql.execution.datasources.DataSource
        try:
            sources.lookupDataSource("kafka", session._jsparkSession.sessionState().conf())
        except (PySparkException, Py4JJavaError) as error:
            raise SinkError(
                "Spark has no Kafka connector. Start it with spark.jars.packages="
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}."
            ) from error
        redacted = session.conf.get(_REDACTED) or ""
        if _SECRETS not in redacted:
            session.conf.set(_REDACTED, f"{redacted}|{_SECRETS}" if redacted else _SECRETS)

    def write(self, rows: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all rows; raises ``SinkError``."""
        versioned, latest = spec.kind == "versioned", spec.latest_by is not None
        columns = "partition int, key binary, value binary"
        if versioned or latest:
            columns += ", headers array<struct<key: string, value: binary>>"
        records = rows.mapInArrow(
            keyed_records(batch.writer, batch.number, batch.ordered, versioned, latest), columns
        )
        writer = records.write.format("kafka").options(**self._options).option("topic", spec.topic)
        _refusing(spec, writer.save)


def open_destination(changelog: Changelog) -> Destination:
    """The destination of a changelog's kind."""
    if isinstance(changelog, SqliteChangelog):
        return SqliteDestination(changelog)
    from forebay.changelog.kafka.changelog import KafkaChangelog

    assert isinstance(changelog, KafkaChangelog)
    return KafkaDestination(changelog)


def _refusing(spec: StoreSpec, act: Callable[[], T]) -> T:
    try:
        return act()
    except (PySparkException, Py4JJavaError) as error:
        if _TOO_LARGE.search(str(error)):
            raise SinkError(
                f"{spec.name}: a record is larger than Kafka takes. Set message.max.bytes in the changelog's URL "
                f"(or its properties) and max.message.bytes of the topic {spec.topic!r} to what the largest needs."
            ) from None
        refusal = _REFUSAL.search(str(error))
        if refusal is None:
            raise
        raise SinkError(f"{spec.name}: {refusal[1]}") from None
