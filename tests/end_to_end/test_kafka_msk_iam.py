"""Amazon MSK's IAM against a real broker that is not Amazon's.

It knows none of MSK's tokens, so a signer in place of Amazon's gets tokens that it knows. How clients request,
present and renew them is the same.
"""

import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from examples.broker import ROOT, Broker
from forebay.errors import SinkError
from forebay_changelog.kafka.url import ALLOWED_URLS
from tests.conftest import need_kafka
from tests.end_to_end.test_kafka_oauth import SECRET, follow_for_three_lives, issuer, listener_options
from tests.end_to_end.test_kafka_security import chain_of, key_of
from tests.end_to_end.test_spark_sink import Source
from tests.end_to_end.test_spark_sink_kafka import TOPOLOGY, jars, spark
from tests.support.cluster import Cluster, running_cluster
from tests.support.commands import forebay
from tests.support.issuer import Issuer

__all__ = ["issuer", "jars", "spark"]

pytestmark = [pytest.mark.kafka]

REGION = "eu-west-1"
SESSION = "a-session-of-aws"
SIGNER = """
import base64, json
from urllib.request import Request, urlopen

class MSKAuthTokenProvider:
    @staticmethod
    def generate_auth_token(region):
        assert region == {region!r}
        request = Request({url!r}, b"grant_type=client_credentials", {headers!r})
        with urlopen(request) as answer:
            token = json.load(answer)["access_token"]
        claims = token.split(".")[1]
        return token, json.loads(base64.urlsafe_b64decode(claims + "=="))["exp"] * 1000
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("msk")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    server = authority.issue_cert("127.0.0.1")
    (directory / "server.pem").write_bytes(key_of(server) + chain_of(server))
    return directory


@pytest.fixture(scope="module")
def broker(directory: Path, issuer: Issuer) -> Iterator[Broker]:
    need_kafka()
    options = listener_options(issuer) | {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": directory / "server.pem",
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED_URLS}={issuer.url}/jwks")
        with Broker(directory / "broker", "SASL_SSL", options) as broker:
            yield broker


@pytest.fixture
def url(broker: Broker, directory: Path) -> str:
    """The broker's, with the file of properties that a Java client would have."""
    file = directory / "kafka.properties"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=AWS_MSK_IAM\n"
        "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;\n"
        "sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler\n"
        f"ssl.ca.location={directory / 'ca.pem'}\n"
    )
    return f"{broker.url}?properties={file}"


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers' names do not have it here."""
    monkeypatch.setenv("AWS_REGION", REGION)


@pytest.fixture
def cluster(url: str, issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One whose processes, and this one, have the other signer."""
    headers = {"Authorization": f"Basic {base64.b64encode(f'forebay:{SECRET}'.encode()).decode()}"}
    signer = tmp_path / "signer" / "aws_msk_iam_sasl_signer.py"
    signer.parent.mkdir()
    signer.write_text(SIGNER.format(region=REGION, url=f"{issuer.url}/token", headers=headers))
    monkeypatch.setenv("PYTHONPATH", str(signer.parent), prepend=os.pathsep)
    namespace: dict[str, object] = {}
    exec(signer.read_text(), namespace)
    monkeypatch.setattr("forebay_changelog.kafka.msk_iam.MSKAuthTokenProvider", namespace["MSKAuthTokenProvider"])
    options = ("--session-timeout-ms", "6000", "--log-level", "debug")
    with running_cluster(tmp_path, kafka=url, topology_text=TOPOLOGY, worker_options=options) as cluster:
        yield cluster


def test_log_and_group_go_on_while_tokens_expire_and_keys_are_replaced(cluster, issuer):
    """No log shows a token."""
    follow_for_three_lives(cluster, issuer)
    header, _, _ = issuer.token("forebay").partition(".")
    assert header[:20] not in cluster.logs()


def test_amazons_token_reaches_a_broker_that_refuses_it_and_shows_no_secret(broker, url, tmp_path, monkeypatch):
    """Over the real signer: the broker expects three parts with dots between them, and it has none."""
    topology = tmp_path / "topology.toml"
    topology.write_text(TOPOLOGY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    refused = forebay("topology", "apply", "--topology", topology, "--changelog", url)
    assert refused.returncode == 1
    [error] = refused.stderr.strip().splitlines()
    assert error.startswith(f"forebay: No broker of {broker.url} answers: ")
    assert "invalid_token" in error
    for secret in ("AKIDEXAMPLE", SECRET, SESSION):
        assert secret not in refused.stderr


@pytest.mark.spark
def test_the_sink_requires_amazons_class_of_spark(spark, cluster, tmp_path):
    """Amazon's own library has it. Where it is, the sink goes on; the broker here knows no such mechanism."""
    from forebay.spark import Sink

    source = Source(spark, tmp_path / "in", "k string, n bigint")
    sink = Sink(cluster.topology_path, changelog=cluster.changelog.url)
    needed = r"IAMClientCallbackHandler\. Add software\.amazon\.msk:aws-msk-iam-auth:\S+ to spark\.jars\.packages"
    with pytest.raises(SinkError, match=needed):
        sink.write(source.df, "latest", key="k", value=["n"])
    subprocess.run([ROOT / "scripts" / "jars" / "fetch", "msk-iam"], check=True)
    [jar] = (ROOT / ".jars" / "msk-iam").glob("*.jar")
    java = spark._jvm.java
    thread = java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    urls = spark.sparkContext._gateway.new_array(java.net.URL, 1)
    urls[0] = java.io.File(str(jar)).toURI().toURL()
    thread.setContextClassLoader(java.net.URLClassLoader(urls, loader))
    try:
        sink.write(source.df, "latest", key="k", value=["n"])
    finally:
        thread.setContextClassLoader(loader)
