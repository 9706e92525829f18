"""A broker that requires TLS, a certificate and a password from every client: librdkafka, aiokafka and Java's."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from examples.broker import Broker
from forebay.task_ids import TopicPartition
from forebay_changelog.kafka.changelog import KafkaChangelog
from tests.conftest import need_kafka
from tests.end_to_end.test_spark_sink import Source, run
from tests.end_to_end.test_spark_sink_kafka import TOPOLOGY, jars, spark
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.kafka_topics import Reader

__all__ = ["jars", "spark"]

pytestmark = [pytest.mark.kafka]

PASSWORD = "a secret = of #1"


def key_of(certificate: trustme.LeafCert) -> bytes:
    """Its private key as Java reads it."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def chain_of(certificate: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Path:
    directory = tmp_path_factory.mktemp("secure")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    client = authority.issue_cert("client.example")
    (directory / "client.pem").write_bytes(chain_of(client))
    (directory / "client.key").write_bytes(key_of(client))
    return directory


@pytest.fixture(scope="module")
def broker(directory: Path, authority: trustme.CA) -> Iterator[Broker]:
    need_kafka()
    server = authority.issue_cert("127.0.0.1")
    (directory / "server.pem").write_bytes(key_of(server) + chain_of(server))
    options = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": directory / "server.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": directory / "ca.pem",
        "ssl.client.auth": "required",
    }
    with Broker(directory / "broker", "SASL_SSL", options, {"forebay": PASSWORD}) as broker:
        yield broker


def url(broker: Broker, directory: Path, **changed: str) -> str:
    """The broker's, with a file of these properties and those that do."""
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "forebay",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(directory / "ca.pem"),
        "ssl.certificate.location": str(directory / "client.pem"),
        "ssl.key.location": str(directory / "client.key"),
    }
    properties |= {name.replace("_", "."): value for name, value in changed.items()}
    file = directory / f"{'-'.join(changed) or 'kafka'}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return f"{broker.url}?properties={file}"


@pytest.fixture
def cluster(broker: Broker, directory: Path, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, kafka=url(broker, directory), topology_text=TOPOLOGY) as cluster:
        yield cluster


def test_log_and_group_work_over_authenticated_clients(cluster):
    """A failover works, and no log shows the password."""
    cluster.put("latest", {b"k%d" % i: b'{"n":%d}' % i for i in range(50)})
    first, second = cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    held = cluster.active_for(router, "latest", "k7")
    assert held in (first, second)
    cluster.kill(held)
    wait_until(
        lambda: cluster.active_for(router, "latest", "k7") not in (held, None), "another worker being active"
    )
    cluster.put("latest", {b"k7": b'{"n":8}'})
    read = f"http://{router}/v1/stores/latest/keys/k7"
    wait_until(lambda: httpx.get(read).json().get("value") == {"n": 8}, "the new value")
    assert PASSWORD not in cluster.logs()


def test_a_restore_reads_as_who_the_url_says(cluster):
    spec = cluster.topology.stores["latest"]
    ends = cluster.put("latest", {b"k%d" % i: b'{"n":%d}' % i for i in range(50)})
    changelog = KafkaChangelog(cluster.changelog.url)
    with Reader(changelog, TopicPartition(spec.topic, 0), replay=True) as reader:
        keys = {key for _, key, _, _, heartbeat in reader.read(ends[0]) if not heartbeat}
    assert keys == {b"k%d" % i for i in range(50) if cluster.partition(spec, b"k%d" % i) == 0}


@pytest.mark.spark
def test_the_sink_writes_as_who_the_url_says(spark, cluster, tmp_path):
    from forebay.spark import Sink

    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    sink = Sink(cluster.topology_path, changelog=cluster.changelog.url)
    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add(*({"k": f"k{i}", "n": i} for i in range(20)))
    run(sink.write(source.df, "latest", key="k", value=["n"]), tmp_path)
    read = f"http://{router}/v1/stores/latest/keys/k7"
    answer = httpx.get(read, params={"min_position": sink.position("latest"), "wait_ms": 10_000})
    assert (answer.status_code, answer.json()["value"]) == (200, {"n": 7})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sasl_password": "another"}, "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ({"ssl_certificate_location": "", "ssl_key_location": ""}, "certificate"),
    ],
)
def test_a_refusal_has_its_reason_and_shows_no_secret(broker, directory, tmp_path, changed, why):
    topology = tmp_path / "topology.toml"
    topology.write_text(TOPOLOGY)
    refused = subprocess.run(
        [sys.executable, "-m", "forebay", "topology", "apply", "--topology", topology]
        + ["--changelog", url(broker, directory, **changed)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    [error] = refused.stderr.strip().splitlines()
    assert error.startswith(f"forebay: No broker of {broker.url} answers: ")
    assert why in error
    assert "another" not in refused.stderr
    assert "Traceback" not in refused.stderr
