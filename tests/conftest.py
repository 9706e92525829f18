import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, settings

from examples.broker import Broker
from examples.jvm import java, spark_options
from examples.spark_connector import spark_connector
from tests.support.checkpoints import copied, extracted, spark_4_0, written
from tests.support.cluster import Cluster, running_cluster
from tests.support.object_store import object_store

__all__ = ["copied", "extracted", "object_store", "spark_4_0", "written"]
"""Fixtures from elsewhere."""


# Machines differ in speed, and a suite that finds something now and then is trusted by nobody.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--crash-kills", type=int, default=100, help="how often the crash test kills (default 100)")


def pytest_configure() -> None:
    # A TLS context for each call of httpx.get takes 25 ms, which makes the waiting loops a load of their own.
    default = httpx._transports.default
    default.create_ssl_context = functools.cache(default.create_ssl_context)
    os.environ.setdefault("JDK_JAVA_OPTIONS", spark_options())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # It mostly waits, so that others can run beside it; at the end there would be no others.
    items.sort(key=lambda item: item.path.name != "test_demo.py")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The broker that FOREBAY_TEST_KAFKA names, or a real one of the session's own."""
    if "FOREBAY_TEST_KAFKA" in os.environ:
        yield os.environ["FOREBAY_TEST_KAFKA"]
        return
    need_kafka()
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.url


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    need_kafka()
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def broker(own_broker: Broker) -> Broker:
    """The module's own broker, which may be stopped and killed: it runs again for the next test."""
    own_broker.ensure_started()
    return own_broker


def need_kafka() -> None:
    for command in (java(), "mvn"):
        if shutil.which(command) is None:
            pytest.skip(f"NO KAFKA TESTED: {command!r} is not on the PATH; install it or set FOREBAY_TEST_KAFKA")


def spark_kafka_jars() -> str:
    """The connector of the PySpark that is installed, in the form of ``spark.jars``."""
    try:
        return spark_connector()
    except FileNotFoundError as error:
        pytest.skip(f"NO KAFKA TESTED: {error}")


@pytest.fixture
def kafka_cluster(tmp_path: Path, kafka_url: str) -> Iterator[Cluster]:
    with running_cluster(tmp_path, kafka=kafka_url) as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def either_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster over each kind of log and group."""
    kafka = request.getfixturevalue("kafka_url") if request.param == "kafka" else None
    with running_cluster(tmp_path, kafka=kafka) as cluster:
        yield cluster
