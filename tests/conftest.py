from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, running_cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--crash-kills", type=int, default=100, help="how often the crash test kills (default 100)")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as cluster:
        yield cluster
