"""Fills a store from the checkpoint of the query that goes on to write it."""

from __future__ import annotations

import logging

from pyspark.sql import types as T

from forebay.clock import epoch_ms
from forebay.errors import ForebayError, SinkError
from forebay_spark.columns import Layout
from forebay_spark.state_mismatch import state_mismatch
from forebay_spark.store_writer import StoreWriter
from forebay_tap.mapping import TableMapping
from forebay_tap.spark_checkpoint import Checkpoint
from forebay_tap.store_tap import StoreTap

log = logging.getLogger(__name__)


def bootstrap(writer: StoreWriter, layout: Layout, location: str, schema: T.StructType, mode: str) -> None:
    """Make a store's log equal to the state that a query left in its checkpoint.

    ``schema`` is that of the query's DataFrame, ``mode`` its output mode. The log says meanwhile that it is being
    filled. If it fails, the next start goes on with it. Raises
    ``SinkError``, saying what the topology lacks or how the state differs from what the query puts out.
    """
    spec = writer.spec
    if spec.spark_state is None:
        raise SinkError(
            f"{spec.name}: bootstrap=True needs to know which of the query's state the store has. Declare its "
            f"spark_state in the topology; 'forebay spark describe {location}' shows how."
        )
    try:
        checkpoint = Checkpoint.open(location)
        newest = checkpoint.newest_batch()
        mapping = TableMapping(spec, checkpoint.operator(spec.spark_state.operator, newest))
        mismatch = state_mismatch(mapping, layout, schema, mode)
        if mismatch is not None:
            raise SinkError(f"{spec.name}: bootstrap=True cannot fill it: {mismatch}.")
        StoreTap(checkpoint, spec, writer.log.changelog, epoch_ms, writer=writer.name).begin(newest)
    except SinkError:
        raise
    except ForebayError as error:
        raise SinkError(f"{spec.name}: it cannot be filled from {location}: {error}") from error
    log.info("%s: its log has the state of batch %d, and the query goes on from there", spec.name, newest)
