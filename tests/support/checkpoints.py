"""Checkpoints that each Spark minor has written, and what their state holds (see ``write_checkpoints.py``)."""

import functools
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from forebay_tap.spark_checkpoint.checkpoint import Checkpoint

ARCHIVES = Path(__file__).parents[1] / "tap/spark_checkpoint/checkpoints"
MINORS = ("4.0", "4.1", "4.2", "4.3")


class Written:
    """The checkpoints of one Spark minor, by the name ``QUERY-PROVIDER``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        return self.directory / name

    def checkpoint(self, name: str) -> Checkpoint:
        return Checkpoint.open(str(self.path(name)))

    def expected(self, name: str) -> list[dict[str, Any]]:
        """What the state holds after each batch, by the JSON text of the key."""
        return json.loads((self.path(name) / "expected.json").read_text())


@pytest.fixture(scope="session")
def extracted(tmp_path_factory):
    @functools.cache
    def extract(minor: str) -> Written:
        directory = tmp_path_factory.mktemp("checkpoints")
        with tarfile.open(ARCHIVES / f"spark-{minor}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
        return Written(directory / minor)

    return extract


@pytest.fixture(params=MINORS)
def written(request, extracted) -> Written:
    return extracted(request.param)


@pytest.fixture
def spark_4_0(extracted) -> Written:
    return extracted("4.0")


@pytest.fixture
def copied(tmp_path, spark_4_0):
    """A checkpoint of Spark 4.0 that the test may damage."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(spark_4_0.path(name), tmp_path / name))

    return copy
