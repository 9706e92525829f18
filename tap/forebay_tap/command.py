"""``forebay spark follow`` and ``bootstrap``: write Spark's state to the logs of stores."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from forebay.cli import worker_settings
from forebay.errors import SettingError
from forebay.output import Output, json_output, progress
from forebay.store_spec import StoreSpec
from forebay.topology_file import load_topology
from forebay_changelog import Wake, open_changelog
from forebay_tap.spark_checkpoint.command import spark
from forebay_tap.tap import EndsReader, SourceEnds, StateTap

log = logging.getLogger(__name__)

_YOUNG_OBJECTS = 50_000

_CHECKPOINT = click.option(
    "--checkpoint", required=True, metavar="URL", help="The query's checkpointLocation, a path or URL."
)
_STORES = click.option(
    "--store",
    "names",
    multiple=True,
    metavar="NAME",
    help="A store with spark_state; repeat it for several. [default: all that have it]",
)
_TAKE_OVER = click.option(
    "--take-over", is_flag=True, help="Replace what another query has written to the stores' logs."
)


@spark.command("follow")
@worker_settings("topology", "changelog")
@_CHECKPOINT
@_STORES
@_TAKE_OVER
@click.option(
    "--source",
    metavar="URL",
    help="kafka:// URL of the query's sources, with credentials: their ends give answers an age.",
)
@click.option(
    "--poll-interval-ms",
    type=click.IntRange(min=10),
    default=200,
    show_default=True,
    help="How often to look for the end of the next batch where files are not local.",
)
def follow(
    topology: Path,
    changelog: str,
    checkpoint: str,
    names: Sequence[str],
    take_over: bool,
    source: str | None,
    poll_interval_ms: int,
) -> None:
    """Write each batch of a query to the logs of stores as it ends, until SIGTERM or SIGINT."""
    stopping = Wake()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    _tap(
        topology,
        changelog,
        checkpoint,
        names,
        ends=SourceEnds(None if source is None else _ends_reader(source)),
        poll_interval_ms=poll_interval_ms,
        take_over=take_over,
        stopping=stopping,
    ).run()


@spark.command("bootstrap")
@worker_settings("topology", "changelog")
@_CHECKPOINT
@_STORES
@_TAKE_OVER
@json_output
def bootstrap(
    topology: Path, changelog: str, checkpoint: str, names: Sequence[str], take_over: bool, output: Output
) -> None:
    """Write a query's whole state to the logs of stores once, as its newest batch left it."""
    # Logs are written beside the bar only if they are set up below it.
    with progress("records written") as advance:
        tap = _tap(
            topology, changelog, checkpoint, names, ends=SourceEnds(None), poll_interval_ms=1, take_over=take_over
        )
        batch = tap.bootstrap(advance)
    document = {"batch_id": batch, "stores": [spec.name for spec in _specs(topology, names)]}
    output.show(document, f"the logs have the state of batch {batch}")


def _tap(topology: Path, changelog: str, checkpoint: str, names: Sequence[str], **options: Any) -> StateTap:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    specs = _specs(topology, names)
    opened = open_changelog(changelog)
    for spec in specs:
        opened.ensure(spec)
    # Rows have no cycles: to search for some, after every 700 objects, would take a fifth of the time.
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    return StateTap(checkpoint, specs, opened, **options)


def _specs(path: Path, names: Sequence[str]) -> list[StoreSpec]:
    stores = load_topology(path).stores
    tapped = [spec.name for spec in stores.values() if spec.spark_state is not None]
    shown = ", ".join(tapped) or "none"
    for name in names:
        if name not in tapped:
            what = "no spark_state" if name in stores else "no such store"
            raise SettingError(f"--store {name}: {path} has {what}. Stores with spark_state: {shown}.")
    if not tapped:
        raise SettingError(f"{path} has no store with spark_state. 'forebay spark describe' shows how.")
    return [stores[name] for name in names or tapped]


def _ends_reader(source: str) -> EndsReader:
    if not source.startswith("kafka://"):
        raise SettingError(f"--source {source!r} is no kafka:// URL: only of Kafka can the ends be asked for.")
    # Only those who name a Kafka source need its client.
    from forebay_changelog.kafka.topic_states import TopicEnds

    return TopicEnds(source)
