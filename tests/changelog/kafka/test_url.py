import ssl
from pathlib import Path

import pytest
import trustme

from forebay.errors import ChangelogError, SettingError
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.kafka.changelog import KafkaChangelog
from forebay_changelog.kafka.topic_states import TopicChanges, TopicStates
from forebay_changelog.kafka.url import KafkaUrl
from tests.support.cluster import wait_until

OAUTH = "kafka://a:1?security.protocol=SASL_SSL&sasl.mechanism=OAUTHBEARER"
OIDC = f"{OAUTH}&sasl.oauthbearer.method=oidc"
CREDENTIALS = f"{OIDC}&sasl.oauthbearer.client.id=me&sasl.oauthbearer.client.secret=p%22"
TOKENS = f"{CREDENTIALS}&sasl.oauthbearer.token.endpoint.url=https://issuer/token"
CA = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"


def test_brokers_and_properties_are_what_the_url_says():
    url = KafkaUrl.parse("kafka://a:9092,[::1]:9093/?client.id=it%20is&sasl.password=a%23b")
    assert url.bootstrap_servers == "a:9092,[::1]:9093"
    assert url.properties == {"client.id": "it is", "sasl.password": "a#b"}


def test_a_properties_file_holds_what_should_not_stand_in_a_url(tmp_path: Path):
    file = tmp_path / "kafka.properties"
    file.write_text("# of the shop\n\nsasl.username = ann\n! old\nsasl.password=a=b c\n")
    url = KafkaUrl.parse(f"kafka://a:1?properties={file}&client.id=x")
    assert url.properties == {"sasl.username": "ann", "sasl.password": "a=b c", "client.id": "x"}


@pytest.mark.parametrize("first", ["sasl.username=ann", "# of the shop", ""])
def test_a_properties_file_may_begin_with_a_mark_of_its_encoding(tmp_path: Path, first: str):
    file = tmp_path / "kafka.properties"
    file.write_text(f"{first}\r\nclient.id=x\r\n", encoding="utf-8-sig")
    expected = {"sasl.username": "ann", "client.id": "x"} if "=" in first else {"client.id": "x"}
    assert KafkaUrl.parse(f"kafka://a:1?properties={file}").properties == expected


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: .*No such file"),
        ("a=1\nsasl.password: secret\n", r":2: the line is not of the form name=value"),
    ],
)
def test_a_properties_file_that_is_wrong_is_named(tmp_path: Path, content: str | None, complaint: str):
    file = tmp_path / "kafka.properties"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingError, match=complaint) as caught:
        KafkaUrl.parse(f"kafka://a:1?properties={file}")
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_secrets_are_shown_neither_in_logs_nor_in_refusals():
    url = "kafka://a:1?sasl.username=ann&sasl.password=secret"
    assert str(KafkaUrl.parse(url)) == "kafka://a:1"
    for wrong in ("&group.id=g", "&security.protocol=no", "&security.protocol=SASL_SSL&sasl.mechanism=no", "#x"):
        with pytest.raises(SettingError) as caught:
            KafkaUrl.parse(url + wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(SettingError, match=r"sasl\.username") as caught:
        KafkaUrl.parse("kafka://ann:secret@a:1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("kafka://", "not of the form kafka://HOST:PORT"),
        ("kafka:///topic", "not of the form"),
        ("kafka://a:1/topic", "not of the form"),
        ("http://a:1", "not of the form"),
        ("kafka://a", "'a' is not HOST:PORT"),
        ("kafka://a:1,b", "'b' is not HOST:PORT"),
        ("kafka://:1", "':1' is not HOST:PORT"),
        ("kafka://a:x", "'a:x' is not HOST:PORT"),
        ("kafka://a:1,b:75628", "'b:75628' is not HOST:PORT: '75628' is not a port: .* from 1 to 65535"),
        ("kafka://a:0", "'a:0' is not HOST:PORT"),
        ("kafka://a:1?sasl.password=a#b", "'#' as '%23'"),
        ("kafka://a:1?security.protocol=TLS", "'TLS' is not one of PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL"),
        (
            "kafka://a:1?security.protocol=SASL_SSL&sasl.mechanism=DIGEST-MD5",
            "not one of AWS_MSK_IAM, GSSAPI, OAUTHBEARER",
        ),
        (OAUTH, r"OAUTHBEARER needs sasl\.oauthbearer\.method=oidc: .* is sasl\.mechanism=AWS_MSK_IAM"),
        (
            f"{OIDC}&sasl.oauthbearer.client.id=a",
            r"needs .*client\.secret and .*endpoint\.url",
        ),
        (f"{CREDENTIALS}&sasl.oauthbearer.token.endpoint.url=a", "'a' is no http or https URL"),
        (f"{TOKENS}&sasl.oauthbearer.extensions=a", "extensions is not of the form name=value,name=value"),
    ],
)
def test_a_url_of_another_form_is_refused(url: str, complaint: str):
    with pytest.raises(SettingError, match=complaint):
        KafkaUrl.parse(url)


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers",
        "group.id",
        "isolation.level",
        "enable.auto.commit",
        "auto.offset.reset",
        "enable.partition.eof",
    ],
)
def test_what_forebay_decides_itself_may_not_be_set(name: str):
    with pytest.raises(SettingError, match=f"sets '{name}', which it must not: ."):
        KafkaUrl.parse(f"kafka://a:1?{name}=x")


@pytest.mark.parametrize("name", ["ssl.ca.pem", "enable.ssl.certificate.verification", "sasl.oauthbearer.config"])
def test_property_of_a_single_client_is_refused(name: str):
    """A TLS property that only one of the Kafka clients knows is refused with the remedy."""
    with pytest.raises(SettingError, match=rf"sets '{name}', which only one .* PEM files, by ssl\.ca\.location"):
        KafkaUrl.parse(f"kafka://a:1?{name}=x")


def test_a_property_that_the_client_does_not_know_is_named():
    changelog = KafkaChangelog("kafka://127.0.0.1:1?nonsense=1")
    with pytest.raises(ChangelogError, match='No such configuration property: "nonsense"'):
        changelog.ensure(StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1))


def test_librdkafka_gets_every_property_and_what_its_user_needs():
    url = KafkaUrl.parse("kafka://a:1,b:2?client.id=x&reconnect.backoff.max.ms=5")
    config = url.librdkafka(group_id="g", enable_auto_commit=False)
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert (config["client.id"], config["reconnect.backoff.max.ms"]) == ("x", "5")
    assert (config["group.id"], config["enable.auto.commit"]) == ("g", False)


SASL = "kafka://a:1?security.protocol={protocol}&{name}={mechanism}&sasl.username=ann&sasl.password=p%22%5C"


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_client_logs_in_alike(name: str, mechanism: str):
    url = KafkaUrl.parse(SASL.format(protocol="sasl_plaintext", name=name, mechanism=mechanism))
    asyncio_client = url.aiokafka()
    assert asyncio_client["security_protocol"] == "SASL_PLAINTEXT"
    assert asyncio_client["sasl_mechanism"] == mechanism
    assert (asyncio_client["sasl_plain_username"], asyncio_client["sasl_plain_password"]) == ("ann", 'p"\\')
    assert "ssl_context" not in asyncio_client
    spark = url.spark()
    assert (spark["kafka.security.protocol"], spark["kafka.sasl.mechanism"]) == ("SASL_PLAINTEXT", mechanism)
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    assert spark["kafka.sasl.jaas.config"] == (
        rf'org.apache.kafka.common.security.{module} required username="ann" password="p\"\\";'
    )
    assert url.librdkafka()[name] == mechanism


def test_every_client_gets_tokens_alike():
    of_a_cluster = "&sasl.oauthbearer.scope=logs&sasl.oauthbearer.extensions=logicalCluster%3Dlkc-1"
    url = KafkaUrl.parse(f"{TOKENS}{of_a_cluster}&https.ca.location={CA}")
    asyncio_client = url.aiokafka()
    assert asyncio_client["sasl_mechanism"] == "OAUTHBEARER"
    assert asyncio_client["sasl_oauth_token_provider"].extensions() == {"logicalCluster": "lkc-1"}
    spark = url.spark()
    assert spark["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://issuer/token"
    assert spark["kafka.sasl.jaas.config"].endswith(
        'OAuthBearerLoginModule required clientId="me" clientSecret="p\\"" extension_logicalCluster="lkc-1" '
        f'scope="logs" ssl.truststore.type="PEM" ssl.truststore.location="{CA}";'
    )
    assert url.librdkafka()["sasl.oauthbearer.method"] == "oidc"


@pytest.mark.parametrize(
    ("algorithm", "checked"), [("", True), ("&ssl.endpoint.identification.algorithm=none", False)]
)
def test_every_client_checks_certificates_alike(algorithm: str, checked: bool):
    url = KafkaUrl.parse(f"kafka://a:1?security.protocol=SSL&ssl.ca.location={CA}{algorithm}")
    context = url.aiokafka()["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname is checked
    spark = url.spark()
    assert spark["kafka.ssl.truststore.type"] == "PEM"
    assert spark["kafka.ssl.truststore.location"] == CA
    # What librdkafka calls "none" is for Java's client an empty name.
    assert spark.get("kafka.ssl.endpoint.identification.algorithm", "https") == ("https" if checked else "")


PKCS8 = "-----BEGIN PRIVATE KEY-----\nMC4CAQ==\n-----END PRIVATE KEY-----\n"


def test_every_client_shows_the_same_certificate(tmp_path):
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.write_text("the certificate")
    key.write_text(PKCS8)
    text = f"ssl.certificate.location={certificate}&ssl.key.location={key}&ssl.key.password=secret"
    url = KafkaUrl.parse(f"kafka://a:1?security.protocol=SSL&{text}")
    spark = url.spark()
    assert spark["kafka.ssl.keystore.type"] == "PEM"
    assert spark["kafka.ssl.keystore.certificate.chain"] == "the certificate"
    assert (spark["kafka.ssl.keystore.key"], spark["kafka.ssl.key.password"]) == (PKCS8, "secret")
    assert url.librdkafka()["ssl.certificate.location"] == str(certificate)
    key.write_text(PKCS8.replace("PRIVATE", "EC PRIVATE"))
    with pytest.raises(SettingError, match=r"client\.key is not PKCS #8 .* openssl pkcs8 -topk8"):
        url.spark()
    key.unlink()
    with pytest.raises(SettingError, match=r"client\.key"):
        url.spark()


def test_a_plain_url_asks_no_more_than_brokers():
    url = KafkaUrl.parse("kafka://a:1?client.id=x")
    assert url.aiokafka() == {"bootstrap_servers": "a:1", "security_protocol": "PLAINTEXT", "client_id": "x"}
    assert url.spark() == {"kafka.bootstrap.servers": "a:1", "kafka.client.id": "x"}


@pytest.mark.parametrize("replay", [False, True])
def test_consumer_keeps_its_client_until_renewal_succeeds(tmp_path, monkeypatch, replay):
    """While certificates are being replaced, a consumer reads on with its old client."""
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    url = f"kafka://127.0.0.1:1?security.protocol=SSL&ssl.ca.location={authority}"
    consumer = KafkaChangelog(url).consumer(replay=replay)
    consumer.assign(TopicPartition("t", 0), 0)
    old = consumer._fetcher
    # Certificates are being replaced as a topic is recreated.
    authority.rename(tmp_path / "away")
    with monkeypatch.context() as recreated:
        recreated.setattr(TopicStates, "take_answers", lambda _: TopicChanges({"t"}, {"t"}))
        assert consumer.poll(100) == []
    consumer.assign(TopicPartition("another", 0), 0)
    assert consumer.poll(100) == []
    assert consumer._fetcher is old
    (tmp_path / "away").rename(authority)
    wait_until(lambda: consumer.poll(100) == [] and consumer._fetcher is not old, "another client")
    consumer.close()
