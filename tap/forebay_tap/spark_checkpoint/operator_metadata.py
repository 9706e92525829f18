"""Where an operator's metadata is: in one file for good, or in one for each batch from which it changed."""

from __future__ import annotations

from forebay_tap.spark_checkpoint.errors import CheckpointMissing
from forebay_tap.spark_checkpoint.files import CheckpointFiles


class OperatorMetadata:
    """The metadata of a checkpoint's operators. Of batches in their order, only the first lists a directory."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._newest: dict[int, tuple[int, int]] = {}
        """By operator, a batch and the batch from which its metadata is, of those that have several files."""

    def read(self, operator: int, batch: int) -> tuple[str, bytes]:
        """The file that says what the batch found, and its content; raises ``CheckpointMissing``."""
        return self._only_one(operator) or self._next(operator, batch) or self._listed(operator, batch)

    def _only_one(self, operator: int) -> tuple[str, bytes] | None:
        return None if operator in self._newest else self._file(f"{_directory(operator)}/metadata")

    def _next(self, operator: int, batch: int) -> tuple[str, bytes] | None:
        """That of the batch itself, or else that of the one before, if this was read last."""
        before, changed = self._newest.get(operator, (batch, batch))
        if batch not in (before, before + 1):
            return None
        for number in sorted({batch, changed}, reverse=True):
            found = self._file(f"{_directory(operator)}/v2/{number}")
            if found is not None:
                self._newest[operator] = (batch, number)
                return found
        return None

    def _listed(self, operator: int, batch: int) -> tuple[str, bytes]:
        directory = _directory(operator)
        batches = [int(name) for name in self._files.list(f"{directory}/v2") if name.isdigit()]
        if not batches:
            message = f"{self._files.url} has no {directory}: no such operator, or one of Spark 3.5 or earlier."
            raise CheckpointMissing(f"{message} Restart the query once with Spark 4, which writes it.")
        earlier = [number for number in batches if number <= batch]
        number = max(earlier) if earlier else min(batches)
        self._newest[operator] = (batch, number)
        path = f"{directory}/v2/{number}"
        return path, self._files.read(path)

    def _file(self, path: str) -> tuple[str, bytes] | None:
        try:
            return path, self._files.read(path)
        except FileNotFoundError:
            return None


def _directory(operator: int) -> str:
    return f"state/{operator}/_metadata"
