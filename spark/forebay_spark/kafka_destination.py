"""How Spark writes a Kafka changelog: through its own connector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from forebay.errors import SinkError
from forebay.store_spec import StoreSpec
from forebay_changelog.kafka.url import ALLOWED_URLS
from forebay_spark.destinations import refusing
from forebay_spark.executor import BatchId, several_rows
from forebay_spark.records import kafka_records

if TYPE_CHECKING:
    from forebay_changelog.kafka.changelog import KafkaChangelog

_REDACTED = "spark.sql.redaction.options.regex"
_BATCHING = {"kafka.linger.ms": "20", "kafka.batch.size": "262144"}
"""Twice as fast as the producer's defaults. A task's last records wait for none of it: they are flushed."""
_HANDLER = "kafka.sasl.client.callback.handler.class"
_MSK_PACKAGE = "software.amazon.msk:aws-msk-iam-auth:2.3.9"
_SECRETS = r"ssl\.(keystore|truststore|key)\.(key|password)|sasl\.jaas\.config"


class KafkaDestination:
    """Spark's own Kafka sink: at least once, so a repeated batch appears twice and folds to the same state."""

    claims_first = True

    def __init__(self, changelog: KafkaChangelog) -> None:
        self._options = _BATCHING | changelog.kafka.spark()
        self._token_endpoint = changelog.kafka.token_endpoint

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
        if self._token_endpoint is not None:
            _require_allowed(session, self._token_endpoint)
        if _HANDLER in self._options:
            _require_class(session, self._options[_HANDLER])
        redacted = session.conf.get(_REDACTED) or ""
        if _SECRETS not in redacted:
            session.conf.set(_REDACTED, f"{redacted}|{_SECRETS}" if redacted else _SECRETS)

    def write(self, records: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all records; raises ``SinkError``."""
        if batch.order:
            self._send(_latest(records, spec, batch.order), spec)
        elif batch.is_distinct or spec.latest_by is not None:
            # Of a store with latest_by, a key in the log has its order: whatever comes last of one stays.
            self._send(records, spec)
        else:
            self._send_checked(records, spec, batch)

    def _send_checked(self, records: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write once no two are of one key: what was looked at is what is written, even if the query would compute
        other rows each time."""
        is_kept = records.storageLevel != StorageLevel.NONE
        kept = records if is_kept else records.persist()
        try:
            repeated = refusing(spec, lambda: _repeated_key(kept))
            if repeated is not None:
                raise SinkError(f"{spec.name}: {several_rows(repeated, batch.number, batch.writer, latest=False)}")
            self._send(kept, spec)
        finally:
            if not is_kept:
                kept.unpersist()

    def _send(self, records: DataFrame, spec: StoreSpec) -> None:
        writer = kafka_records(records, spec).write.format("kafka").options(**self._options)
        refusing(spec, writer.option("topic", spec.topic).save)


def _require_allowed(session: SparkSession, token_endpoint: str) -> None:
    """Raise ``SinkError`` unless Java's client may ask for tokens: from version 4 on each task would fail.

    Why for all versions: the job would stop at an upgrade of Spark.
    """
    assert session._jvm is not None
    on_driver = str(session._jvm.java.lang.System.getProperty(ALLOWED_URLS) or "")
    is_local = str(session.conf.get("spark.master", "")).startswith("local")
    options = str(session.conf.get("spark.executor.extraJavaOptions", "") or "").split()
    of_executors = [option for option in options if option.startswith(f"-D{ALLOWED_URLS}=")]
    on_executors = on_driver if is_local else ",".join(of_executors).partition("=")[2]
    if not all(token_endpoint in urls.split(",") for urls in (on_driver, on_executors)):
        raise SinkError(
            "Kafka's Java client asks no token endpoint that is not allowed. Start Spark with "
            f"spark.driver.extraJavaOptions=-D{ALLOWED_URLS}={token_endpoint}, and with "
            "spark.executor.extraJavaOptions of the same."
        )


def _require_class(session: SparkSession, name: str) -> None:
    """Raise ``SinkError`` unless Java's client finds the class that signs in to Amazon MSK."""
    assert session._jvm is not None
    try:
        session._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError as error:
        raise SinkError(f"Spark has no {name}. Add {_MSK_PACKAGE} to spark.jars.packages at its start.") from error


def _latest(records: DataFrame, spec: StoreSpec, order: tuple[str, ...]) -> DataFrame:
    """The latest record of each key, and for a versioned store of each valid-from."""
    of_one = ("key", "timestamp_ms") if spec.store_kind.keeps_versions else ("key",)
    # By the value last, so that a repeat of the batch chooses the same of equally ordered rows.
    newest_first = [F.col(name).desc() for name in (*order, "value")]
    place = F.row_number().over(Window.partitionBy(*of_one).orderBy(*newest_first))
    return _by(records, *of_one).withColumn("place", place).where("place = 1")


def _repeated_key(records: DataFrame) -> bytes | None:
    """A key of several records, None if there is none."""
    # Their hashes are counted first, which are shorter; some may be equal by chance.
    hashes = _by(records.select(F.xxhash64("key").alias("hash")), "hash")
    if not hashes.groupBy("hash").count().where("count > 1").limit(1).collect():
        return None
    by_key = records.groupBy("key").count().where("count > 1").limit(1).collect()
    return bytes(by_key[0]["key"]) if by_key else None


def _by(records: DataFrame, *columns: str) -> DataFrame:
    """The records, shuffled into as few tasks as there are cores: by default Spark makes two hundred."""
    return records.repartition(records.sparkSession.sparkContext.defaultParallelism, *columns)
