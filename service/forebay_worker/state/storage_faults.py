"""Storage faults: refusals by the disk or the machine. They are no fault of a store and may pass by themselves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from forebay_worker.state.fsync import create_file

_WRITABLE = "Make it writable for this user, then restart the worker if it does not continue by itself."
_LOST = "The disk may be lost: check it, or restart the worker with an empty directory, which it will fill again."
_REMEDIES = {
    errno.ENOSPC: "Free some space; the worker continues by itself.",
    errno.EDQUOT: "Raise the quota or free some space; the worker continues by itself.",
    errno.EFBIG: "Raise the limit on the size of files.",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EMFILE: "Raise the process's limit of open files (`LimitNOFILE=`): a store takes about ten.",
    errno.ENFILE: "Raise the machine's limit of open files (`fs.file-max`).",
    errno.ENOMEM: "Give the machine more memory, or this worker fewer tasks.",
    errno.EIO: _LOST,
    errno.ENODEV: _LOST,
    errno.ENXIO: _LOST,
    errno.ESTALE: _LOST,
    errno.EAGAIN: "End the process that has the store open.",
}
_EVERYWHERE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
ROOM_TO_OPEN_BYTES = 32 << 20
"""Opening a store may write out everything in its log, up to a write buffer."""


def storage_fault(error: Exception, directory: Path) -> str | None:
    """The directory, the refusal and the remedy; None if an error is not of that kind.

    RocksDB's errors can be recognised only by their text.
    """
    number = _number(error)
    if number is None:
        return None
    what = "opened" if number == errno.EAGAIN else "written"
    return f"The state directory {directory} cannot be {what}: {os.strerror(number)}. {_REMEDIES[number]}"


def meets_all(error: Exception) -> bool:
    """Whether an error is a storage fault that every store of this process would meet."""
    return _number(error) in _EVERYWHERE


def _number(error: Exception) -> int | None:
    number = error.errno if isinstance(error, OSError) else None
    if number in _REMEDIES:
        return number
    return next((known for known in _REMEDIES if os.strerror(known) in str(error)), None)


def in_use(error: Exception) -> bool:
    """Whether an unfinished read still holds the previous store open."""
    return "lock hold by current process" in str(error)


def require_room(directory: Path) -> None:
    """Raise ``OSError`` unless a store in this directory could be opened now, quotas included."""
    path = directory / ".room"
    try:
        descriptor = create_file(path)
        try:
            os.posix_fallocate(descriptor, 0, ROOM_TO_OPEN_BYTES)
        finally:
            os.close(descriptor)
    finally:
        path.unlink(missing_ok=True)
