"""A broker that lets in who has a token of an issuer: librdkafka, aiokafka and Java's client get theirs."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.broker import Broker
from forebay.errors import ChangelogUnreachable
from forebay_changelog.kafka.topics import KafkaTopics
from forebay_changelog.kafka.url import ALLOWED_URLS, KafkaUrl
from tests.conftest import need_kafka
from tests.end_to_end.test_spark_sink import Source, run
from tests.end_to_end.test_spark_sink_kafka import TOPOLOGY, jars, spark
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until
from tests.support.commands import forebay
from tests.support.issuer import Issuer

__all__ = ["jars", "spark"]

pytestmark = [pytest.mark.kafka]

SECRET = "a secret of #1"
LIFE_S = 8
"""Of tokens, and so of the connections that were opened with them."""
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer({"forebay": SECRET}, life_s=LIFE_S) as issuer:
        yield issuer


def listener_options(issuer: Issuer) -> dict[str, object]:
    """Of a listener that lets in who has a token of the issuer."""
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": f"{MODULE} required;",
        "oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
        "oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/jwks",
        "oauthbearer.sasl.oauthbearer.expected.issuer": issuer.url,
        "oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        "oauthbearer.sasl.oauthbearer.clock.skew.seconds": 0,
        # Whoever presents no later token in time is cut off.
        "oauthbearer.connections.max.reauth.ms": LIFE_S * 1000,
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Broker]:
    need_kafka()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED_URLS}={issuer.url}/jwks")
        options = listener_options(issuer)
        broker = Broker(tmp_path_factory.mktemp("oauth") / "broker", "SASL_PLAINTEXT", options)
        with broker:
            yield broker


def url(broker: str, issuer: Issuer, directory: Path, **changed: str) -> str:
    """A broker's URL, with a file of these properties and those that do."""
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "forebay",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.oauthbearer.scope": "logs",
    }
    properties |= {name.replace("_", "."): value for name, value in changed.items()}
    file = directory / "kafka.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return f"{broker}?properties={file}"


@pytest.fixture
def cluster(broker: Broker, issuer: Issuer, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, kafka=url(broker.url, issuer, tmp_path), topology_text=TOPOLOGY) as cluster:
        yield cluster


def follow_for_three_lives(cluster: Cluster, issuer: Issuer) -> None:
    """Every write is read, and the active stays, for three lives of a token, and past a replaced key."""
    cluster.put("latest", {b"k": b'{"n":0}'})
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    held = cluster.active_for(router, "latest", "k")
    requests, until, n = issuer.requests["/token"], time.monotonic() + 3 * LIFE_S, 0
    while time.monotonic() < until:
        n += 1
        cluster.put("latest", {b"k": b'{"n":%d}' % n})
        read = f"http://{router}/v1/stores/latest/keys/k?max_time_lag_ms=10000"
        wait_until(lambda: httpx.get(read).json().get("value") == {"n": n}, "what was written")  # noqa: B023
        if n == 10:
            issuer.rotate()
        time.sleep(0.2)
    assert cluster.active_for(router, "latest", "k") == held
    # Of each client several, one after the other.
    assert issuer.requests["/token"] - requests >= 6


def test_log_and_group_go_on_while_tokens_expire_and_keys_are_replaced(cluster, issuer):
    """No log shows the secret."""
    follow_for_three_lives(cluster, issuer)
    assert SECRET not in cluster.logs()


@pytest.mark.spark
def test_the_sink_writes_with_tokens_of_its_own(spark, cluster, issuer, tmp_path):
    from forebay.errors import SinkError
    from forebay.spark import Sink

    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add(*({"k": f"k{i}", "n": i} for i in range(20)))
    system = spark._jvm.java.lang.System
    sink = Sink(cluster.topology_path, changelog=cluster.changelog.url)
    for allowed in ("", f"{issuer.url}/tokens"):
        system.setProperty(ALLOWED_URLS, allowed)
        with pytest.raises(SinkError, match=f"spark.driver.extraJavaOptions=-D{ALLOWED_URLS}={issuer.url}/token"):
            sink.write(source.df, "latest", key="k", value=["n"])
    system.setProperty(ALLOWED_URLS, f"{issuer.url}/token")
    try:
        run(sink.write(source.df, "latest", key="k", value=["n"]), tmp_path)
    finally:
        system.clearProperty(ALLOWED_URLS)
    read = f"http://{router}/v1/stores/latest/keys/k7"
    answer = httpx.get(read, params={"min_position": sink.position("latest"), "wait_ms": 10_000})
    assert (answer.status_code, answer.json()["value"]) == (200, {"n": 7})


def test_a_refusal_of_the_issuer_has_its_reason_and_shows_no_secret(broker, issuer, tmp_path):
    topology = tmp_path / "topology.toml"
    topology.write_text(TOPOLOGY)
    changelog = url(broker.url, issuer, tmp_path, sasl_oauthbearer_client_secret="another")
    refused = forebay("topology", "apply", "--topology", topology, "--changelog", changelog)
    assert refused.returncode == 1
    [error] = refused.stderr.strip().splitlines()
    assert error.startswith(f"forebay: No broker of {broker.url} answers: ")
    assert "invalid_client" in error
    assert "another" not in refused.stderr


def test_a_refusal_before_a_request_is_the_reason_of_its_time_out(issuer, tmp_path):
    """The client has a token fetched when it is made, and again only after seconds."""
    away = url(f"kafka://127.0.0.1:{free_port()}", issuer, tmp_path, sasl_oauthbearer_client_secret="another")
    topics = KafkaTopics(KafkaUrl.parse(away))
    wait_until(lambda: "invalid_client" in topics.silent(), "the refusal")
    for _ in range(2):
        with pytest.raises(ChangelogUnreachable, match="invalid_client"):
            topics.describe("a topic")
