"""Where a micro-batch's rows go: each kind of changelog has its own way in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from forebay.backend_registry import load_backend
from forebay.errors import SinkError
from forebay.store_spec import StoreSpec
from forebay_changelog import Changelog
from forebay_changelog.sqlite.log_file import WriteRefused
from forebay_spark.executor import BatchId

T = TypeVar("T")

DESTINATION_ENTRY_POINTS = "forebay.destinations"
"""The entry points of destinations. Each is named after the scheme of its changelog's URLs."""

_REFUSAL = re.compile(r"WriteRefused: (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_TOO_LARGE = re.compile(r"RecordTooLargeException|max\.request\.size")


class Destination(Protocol):
    """Writes a batch's records, which have the columns that ``RecordColumns`` makes.

    What is registered returns one for a changelog. Executors may lack its package. So it registers the modules of
    functions that it sends them with ``pyspark.cloudpickle.register_pickle_by_value``.
    """

    claims_first: bool
    """Whether a heartbeat before each batch must confirm that the query is still the writer of its name."""

    def check(self, session: SparkSession) -> None:
        """Raise ``SinkError`` for a session that cannot write there."""

    def write(self, records: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all records; raises ``SinkError``, above all for two of one key that nothing orders."""


def open_destination(changelog: Changelog) -> Destination:
    """The destination of a changelog's kind; raises ``SettingError`` if none is installed."""
    destination: Destination = load_backend(DESTINATION_ENTRY_POINTS, changelog.url, "sink's changelog")(changelog)
    return destination


def refusing(spec: StoreSpec, act: Callable[[], T]) -> T:
    """Write; what a task of Spark's, or this process, refused of a store is raised as ``SinkError``."""
    try:
        return act()
    except WriteRefused as error:
        raise SinkError(f"{spec.name}: {error}") from None
    except (PySparkException, Py4JJavaError) as error:
        if _TOO_LARGE.search(str(error)):
            raise SinkError(
                f"{spec.name}: a record is larger than Kafka takes. Set message.max.bytes in the changelog's URL "
                f"(or its properties) and max.message.bytes of the topic {spec.topic!r} to what the largest needs."
            ) from None
        refusal = _REFUSAL.search(str(error))
        if refusal is None:
            raise
        raise SinkError(f"{spec.name}: {refusal[1].removeprefix(f'{spec.name}: ')}") from None
