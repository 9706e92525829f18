"""A store's own metadata on disk, read without changing it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from forebay.file_access import read_regular
from forebay.state_store import CommittedOffset
from forebay.task_ids import TopicPartition
from forebay_worker.state.checkpoint_file import CheckpointFile, CheckpointFileError
from forebay_worker.state.relocation_plan import StoreContent
from forebay_worker.state.reserved_records import IDENTITY_KEY, OFFSET_KEY, StoreIdentity, offsets_from_json

log = logging.getLogger(__name__)

IDENTITY_NAME = ".forebay-identity.json"
"""The file with the identity of a store of a user's supplier, in its directory."""


def read_content(path: Path) -> StoreContent:
    """Identity and committed offsets of ``<task>/rocksdb/<store>``.

    A store that does not keep its own offsets has those of its task's ``.checkpoint``. For one that cannot be read
    the result is empty and the reason is logged.
    """
    try:
        checkpointed = CheckpointFile.of(path.parents[1]).read()
    except CheckpointFileError as error:
        log.warning("%s", error)
        checkpointed = {}
    try:
        supplied = read_identity(path)
        # rocksdict leaves a file of its own behind in a directory that is not a RocksDB.
        if supplied is not None or not (path / "CURRENT").exists():
            return StoreContent(supplied, checkpointed)
        identity, committed = _read_rocksdb(path)
    except Exception as error:
        log.warning("the store %s cannot be read: %s", path, error)
        return StoreContent()
    offsets = {topic_partition: offset.position for topic_partition, offset in committed.items()}
    restored = bool(committed) and all(offset.restored for offset in committed.values())
    return StoreContent(identity, {**checkpointed, **offsets}, restored)


def was_only_begun(path: Path) -> bool:
    """Whether a RocksDB store was opened, and never committed anything; False if it cannot be read."""
    try:
        if read_identity(path) is not None or not (path / "CURRENT").exists():
            return False
        return _read_rocksdb(path) == (None, {})
    except Exception:
        return False


def read_identity(path: Path) -> StoreIdentity | None:
    """The identity of a user's supplier's store, None without one; raises ``ValueError`` or ``TypeError``."""
    try:
        return StoreIdentity(**json.loads(read_regular(path / IDENTITY_NAME)))
    except FileNotFoundError:
        return None


def _read_rocksdb(path: Path) -> tuple[StoreIdentity | None, dict[TopicPartition, CommittedOffset]]:
    options = Options(raw_mode=True)
    # More threads would be started and ended at every opening, which takes longer than the reading.
    options.set_max_file_opening_threads(1)
    db = Rdict(str(path), options=options, access_type=AccessType.read_only())
    try:
        identity, offsets = db.get(IDENTITY_KEY), db.get(OFFSET_KEY)
    finally:
        db.close()
    return None if identity is None else StoreIdentity(**json.loads(identity)), offsets_from_json(offsets)
