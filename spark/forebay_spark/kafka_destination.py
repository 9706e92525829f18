"""How Spark writes a Kafka changelog: through its own connector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from forebay.errors import SinkError
from forebay.store_spec import StoreSpec
from forebay_spark.destinations import BatchId, refusing
from forebay_spark.keyed_records import keyed_records

if TYPE_CHECKING:
    from forebay_changelog.kafka.changelog import KafkaChangelog

_REDACTED = "spark.sql.redaction.options.regex"
_SECRETS = r"ssl\.(keystore|truststore|key)\.(key|password)|sasl\.jaas\.config"


class KafkaDestination:
    """Spark's own Kafka sink: at least once, so a repeated batch appears twice and folds to the same state."""

    claims_first = True

    def __init__(self, changelog: KafkaChangelog) -> None:
        self._options = changelog.kafka.spark()

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
        versioned, latest = spec.store_kind.keeps_versions, spec.latest_by is not None
        columns = "partition int, key binary, value binary"
        if versioned or latest:
            columns += ", headers array<struct<key: string, value: binary>>"
        records = rows.mapInArrow(
            keyed_records(batch.writer, batch.number, batch.ordered, versioned, latest), columns
        )
        writer = records.write.format("kafka").options(**self._options).option("topic", spec.topic)
        refusing(spec, writer.save)
