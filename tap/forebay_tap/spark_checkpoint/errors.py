"""What can be wrong with a checkpoint.

CheckpointError
├── CheckpointUnreachable       the file system cannot be read now
├── CheckpointMissing           there is no checkpoint
├── CheckpointFileCorrupt       a file is cut short, or not what its name says
├── CheckpointFormatUnknown     a format, or its number, that this version does not know
├── StateUnsupported            known, and not decoded: the message says why
├── VersionNotCommitted         the batch that writes a version has not ended
├── VersionPurged               Spark has deleted a version's files
└── LineageMismatch             a file belongs to another attempt than the one that was committed
"""

from __future__ import annotations

from forebay.errors import ConfigurationError


class CheckpointError(ConfigurationError):
    """A checkpoint cannot be read as it is; the message names the file, what it contains, and the remedy."""


class CheckpointUnreachable(CheckpointError):
    """The file system that holds the checkpoint does not answer."""

    exit_status: int = 1


class CheckpointMissing(CheckpointError):
    """The location holds no checkpoint, or one without the operator, store or batch that was named."""


class CheckpointFileCorrupt(CheckpointError):
    """A file is cut short or does not contain what its format prescribes."""


class CheckpointFormatUnknown(CheckpointError):
    """A file has a format that this version of forebay does not know; ``finding`` is which, without the remedy."""

    def __init__(self, finding: str) -> None:
        super().__init__(f"{finding} Use a version of forebay that knows this version of Spark.")


class StateUnsupported(CheckpointError):
    """A kind of state that forebay knows and does not decode."""


class VersionNotCommitted(CheckpointError):
    """The batch that writes the version has not ended, so that its files may still be replaced."""

    exit_status: int = 1


class VersionPurged(CheckpointError):
    """The version's files are not there: Spark deletes those beyond ``minBatchesToRetain``."""


class LineageMismatch(CheckpointError):
    """A file was written by another attempt at its batch than the one that the commit names."""
