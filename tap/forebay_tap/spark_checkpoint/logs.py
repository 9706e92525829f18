"""A query's own files: its id, and for each batch what was to be read (``offsets``) and that it ended
(``commits``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from forebay_tap.spark_checkpoint.errors import CheckpointFileCorrupt, CheckpointFormatUnknown

_OFFSETS_FORMATS = ("v1", "v2")
_COMMIT_FORMATS = ("v1", "v2")
_NO_END = "-"


@dataclass(frozen=True)
class Offsets:
    """What a batch reads up to, written before it starts; watermark and times are epoch milliseconds.

    ``sources`` has each source's end as its JSON text, by its position or, where sources have names, by its name;
    None where the batch reads nothing of it. ``conf`` has the settings that a query keeps for good.
    """

    watermark_ms: int
    started_ms: int
    conf: Mapping[str, str]
    sources: Mapping[str, str | None]

    def kafka_offsets(self) -> dict[tuple[str, int], int] | None:
        """The next offset of each partition of each topic that is read; None unless all sources are Kafka's.

        Of a topic that several sources read, the least offset: up to there all of them have read it.
        """
        read_to: dict[tuple[str, int], int] = {}
        for end in self.sources.values():
            try:
                topics = json.loads(end or "")
                for topic, partitions in topics.items():
                    for partition, text in partitions.items():
                        place, offset = (topic, int(partition)), int(text)
                        read_to[place] = min(offset, read_to.get(place, offset))
            except (ValueError, AttributeError, TypeError):
                return None
        return read_to or None


StoreIds = Mapping[int, tuple[tuple[str, ...], ...]]
"""By operator, the unique id of each partition's stores (``[partition][store]``), which checkpoint format 2 puts
into file names; empty in format 1."""


def parse_offsets(data: bytes, file: str) -> Offsets:
    """``offsets/N``; raises ``CheckpointFormatUnknown`` or ``CheckpointFileCorrupt``."""
    lines = _lines(data, file, _OFFSETS_FORMATS)
    try:
        metadata = json.loads(lines[1])
        watermark_ms, started_ms = metadata["batchWatermarkMs"], metadata["batchTimestampMs"]
        sources = _sources(lines[2:], named=lines[0] == "v2")
        return Offsets(watermark_ms, started_ms, metadata.get("conf", {}), sources)
    except (ValueError, LookupError, TypeError) as error:
        raise _corrupt(file, error) from error


def parse_commit(data: bytes, file: str) -> StoreIds:
    """``commits/N``; raises ``CheckpointFormatUnknown`` or ``CheckpointFileCorrupt``."""
    lines = _lines(data, file, _COMMIT_FORMATS)
    try:
        # Batches of Spark 2 have an empty object.
        metadata = json.loads(lines[1])
        ids = metadata.get("stateUniqueIds") or {}
        return {
            int(operator): tuple(tuple(stores) for stores in partitions) for operator, partitions in ids.items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _corrupt(file, error) from error


def parse_query_id(data: bytes, file: str) -> str:
    """The checkpoint's id, of its file ``metadata``; raises ``CheckpointFileCorrupt``."""
    try:
        return str(json.loads(data)["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise _corrupt(file, error) from error


def _sources(lines: list[str], *, named: bool) -> dict[str, str | None]:
    """Each source's end; in format 2 a line is the source's name, a colon and its end."""
    pairs = [line.split(":", 1) for line in lines] if named else [[str(at), line] for at, line in enumerate(lines)]
    return {name: None if end == _NO_END else end for name, end in pairs}


def _lines(data: bytes, file: str, formats: tuple[str, ...]) -> list[str]:
    lines = data.decode(errors="replace").rstrip("\n").split("\n")
    if not lines[0].startswith("v"):
        raise _corrupt(file, "it has no format in its first line")
    if lines[0] not in formats:
        raise CheckpointFormatUnknown(f"{file} has format {lines[0]}; forebay knows {', '.join(formats)}.")
    return lines


def _corrupt(file: str, error: object) -> CheckpointFileCorrupt:
    return CheckpointFileCorrupt(f"{file} is cut short or damaged: {error}. Restore the file.")
