"""Fills a store from a batch DataFrame: what its stream lacks, a correction, or all that it is to contain."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from forebay.errors import SinkError
from forebay.store_spec import StoreSpec
from forebay_changelog import Changelog
from forebay_changelog.log_reader import records_to_end
from forebay_spark.destinations import refusing
from forebay_spark.store_writer import StoreWriter
from forebay_spark.write import Write

log = logging.getLogger(__name__)

_KEYS = "partition int, key binary, is_live boolean"
IfWritten: TypeAlias = Literal["raise", "skip"]
FILL_PREFIX = "fill-"
"""With the name of a fill, its writer."""


@dataclass(frozen=True)
class FillResult:
    """What a fill did: the rows of its DataFrame, and the keys that it deleted, as a snapshot.

    ``skipped`` if a fill of that name was through before: then it did nothing.
    """

    rows: int = 0
    deleted_keys: int = 0
    skipped: bool = False


def fill(
    write: Write, df: DataFrame, *, snapshot: bool, max_deleted: int | None, if_written: IfWritten
) -> FillResult:
    """Write all rows once under the writer's name, then retire it as completed; see ``Sink.fill``."""
    writer, changelog = write.writer, write.writer.log.changelog
    topic, query_id = writer.spec.topic, writer.name
    if changelog.has_completed(topic, writer.name):
        return _already_through(writer, if_written)
    is_repeat = not writer.lacks(query_id)
    records = write.records.of(df).persist()
    try:
        rows, count, deleted = records, refusing(writer.spec, records.count), 0
        if snapshot:
            keys = _keys_of_log(records.sparkSession, changelog, writer.spec, deleted=is_repeat)
            absent = keys.join(records.select("key"), "key", "left_anti")
            deleted = absent.where("is_live").count()
            _require_meant(writer, count, deleted, max_deleted)
            # A row without a value for each key of the log that the DataFrame lacks.
            rows = records.unionByName(absent.select("partition", "key"), allowMissingColumns=True)
        # Until it is through, the age of the store is unknown, and no key is missing for sure.
        writer.patiently(lambda: writer.beat(query_id, None, -1, filling=True))
        write.append(rows, query_id, 0)
    finally:
        records.unpersist()
    changelog.retire_writer(topic, writer.name, completed=True)
    return FillResult(count, deleted)


def _already_through(writer: StoreWriter, if_written: IfWritten) -> FillResult:
    store, name = writer.spec.name, writer.name.removeprefix(FILL_PREFIX)
    if if_written == "raise":
        raise SinkError(
            f"{store}: a fill named {name!r} was already through, so these rows would not be written. Give other "
            'rows another name=. If the same call may be repeated, as by a scheduler: if_written="skip".'
        )
    log.info("%s: the fill %r was already through", store, name)
    return FillResult(skipped=True)


def _require_meant(writer: StoreWriter, rows: int, deleted: int, max_deleted: int | None) -> None:
    """Raise ``SinkError`` if a snapshot would delete more than is meant, or all without a word about it."""
    store = writer.spec.name
    if max_deleted is None and not rows and deleted:
        raise SinkError(
            f"{store}: the DataFrame of this snapshot has no rows, so all {deleted} keys of the store would be "
            f"deleted. If that is meant, say so: max_deleted={deleted}."
        )
    if max_deleted is not None and deleted > max_deleted:
        raise SinkError(
            f"{store}: this snapshot would delete {deleted} keys that its {rows} rows lack, which is more than "
            f"max_deleted={max_deleted}. Nothing was written."
        )


def _keys_of_log(session: SparkSession, changelog: Changelog, spec: StoreSpec, *, deleted: bool) -> DataFrame:
    """Every key that has a value in a store's log as it is now, and its partition.

    Those with a tombstone, too, if they are to be ``deleted`` again: an earlier attempt may have written it, and
    a repeat must have every key of it. They are not live. Raises ``ChangelogError``.
    """
    keys: dict[tuple[int, bytes], bool] = {}
    for partition, (_, key, value, *_) in records_to_end(changelog, spec):
        if value is None and not deleted:
            keys.pop((partition, key), None)
        else:
            keys[partition, key] = value is not None
    rows = [(partition, bytearray(key), is_live) for (partition, key), is_live in keys.items()]
    return session.createDataFrame(rows, _KEYS)
