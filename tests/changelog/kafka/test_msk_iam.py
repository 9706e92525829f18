"""Amazon MSK's IAM, with the real signer and no network: what each client is given, and what is refused."""

import asyncio
import base64
import logging
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from aiokafka.errors import AuthenticationFailedError
from confluent_kafka import KafkaException

from forebay.errors import ChangelogError, SettingError
from forebay_changelog.kafka.topics import KafkaTopics
from forebay_changelog.kafka.url import KafkaUrl
from tests.support.bare import run_bare

SECRET, SESSION = "a-secret-of-aws", "a-session-of-aws"
BROKER = "b-1.shop.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"
SIGNED_IN = "security.protocol=SASL_SSL&sasl.mechanism=AWS_MSK_IAM"
URL = f"kafka://{BROKER}?{SIGNED_IN}"
JAVA = (
    "&sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule%20%20required;"
    "&sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler"
)
LIFE_S = 900


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of the environment, and no others of this machine."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDFIRST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)


def lose_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)


def signed(token: str) -> tuple[str, str]:
    """The host that a token is for, and whose it is."""
    url = urlsplit(base64.urlsafe_b64decode(token + "==").decode())
    query = parse_qs(url.query)
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Security-Token"] == [SESSION]
    key, _, region, _, _ = query["X-Amz-Credential"][0].split("/")
    assert url.hostname == f"kafka.{region}.amazonaws.com"
    return region, key


@pytest.mark.parametrize("properties", ["", JAVA])
def test_librdkafka_gets_a_token_and_its_end_in_seconds(properties: str, monkeypatch: pytest.MonkeyPatch):
    """Each after the first is of the credentials that there are then, as those of a role change."""
    config = KafkaUrl.parse(URL + properties).librdkafka(group_id="g")
    assert (config["security.protocol"], config["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    assert not [name for name in config if name.startswith("sasl.") and name != "sasl.mechanism"]
    token, expires_epoch_s = config["oauth_cb"]("")
    assert signed(token) == ("eu-west-1", "AKIDFIRST")
    assert LIFE_S - 30 < expires_epoch_s - time.time() <= LIFE_S
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNEXT")
    token, _ = config["oauth_cb"]("")
    assert signed(token) == ("eu-west-1", "AKIDNEXT")


@pytest.mark.parametrize("properties", ["", JAVA])
def test_aiokafka_gets_a_token_for_each_connection(properties: str, monkeypatch: pytest.MonkeyPatch):
    arguments = KafkaUrl.parse(URL + properties).aiokafka()
    assert (arguments["security_protocol"], arguments["sasl_mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    tokens = arguments["sasl_oauth_token_provider"]
    assert signed(asyncio.run(tokens.token())) == ("eu-west-1", "AKIDFIRST")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNEXT")
    assert signed(asyncio.run(tokens.token())) == ("eu-west-1", "AKIDNEXT")
    assert tokens.extensions() == {}


@pytest.mark.parametrize("properties", ["", JAVA])
def test_java_signs_in_by_itself(properties: str):
    options = KafkaUrl.parse(URL + properties).spark()
    assert {name: value for name, value in options.items() if ".s" in name} == {
        "kafka.bootstrap.servers": BROKER,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


@pytest.mark.parametrize(
    ("servers", "environment", "region"),
    [
        (BROKER, {"AWS_REGION": "us-east-1"}, "eu-west-1"),
        ("proxy:1,boot-abc.c1.kafka-serverless.ap-south-1.amazonaws.com:9098", {}, "ap-south-1"),
        ("b-1.shop.abc.c2.KAFKA.US-GOV-WEST-1.amazonaws.com:9198", {}, "us-gov-west-1"),
        ("b-1.shop.abc.c2.kafka.cn-north-1.amazonaws.com.cn:9098", {}, "cn-north-1"),
        ("kafka.us-west-2.amazonaws.com.example:9098", {"AWS_DEFAULT_REGION": "eu-north-1"}, "eu-north-1"),
        ("proxy:9098", {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "eu-north-1"}, "us-east-1"),
    ],
)
def test_the_region_is_that_of_the_brokers_names_or_of_the_environment(
    servers: str, environment: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    token, _ = KafkaUrl.parse(f"kafka://{servers}?{SIGNED_IN}").librdkafka()["oauth_cb"]("")
    assert signed(token) == (region, "AKIDFIRST")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (
            f"kafka://proxy:9098?{SIGNED_IN}",
            "'kafka://proxy:9098': no broker's name has the region .*: set AWS_REGION",
        ),
        (f"kafka://{BROKER}?sasl.mechanism=AWS_MSK_IAM", r"needs security\.protocol=SASL_SSL"),
        (f"kafka://{BROKER}?security.protocol=SASL_PLAINTEXT&sasl.mechanism=aws_msk_iam", r"protocol=SASL_SSL"),
        (f"{URL}&sasl.username=ann", "sasl.username with .*: it takes no such property"),
        (f"{URL}&sasl.oauthbearer.client.secret=hidden", r"sasl\.oauthbearer\.client\.secret with"),
        (
            f"{URL}&sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required awsRoleArn=hidden;",
            "sasl.jaas.config with .* takes only 'software.* required;'.* by AWS_PROFILE, or by AWS_ROLE_ARN",
        ),
        (f"{URL}&sasl.client.callback.handler.class=hidden", "only 'software.amazon.*IAMClientCallbackHandler'"),
    ],
)
def test_what_it_cannot_be_used_with_is_refused(url: str, complaint: str):
    with pytest.raises(SettingError, match=complaint) as caught:
        KafkaUrl.parse(url)
    assert "hidden" not in str(caught.value)


def test_javas_properties_are_for_no_other_mechanism():
    with pytest.raises(SettingError, match=r"sets 'sasl\.jaas\.config', which only one of the clients knows"):
        KafkaUrl.parse(f"kafka://a:1?security.protocol=SASL_SSL&sasl.mechanism=PLAIN{JAVA}")


MISSING = "eu-west-1 cannot be had: there are none.* Give each process a role, or name a profile by AWS_PROFILE"


def test_missing_credentials_are_named_before_a_client_starts(monkeypatch: pytest.MonkeyPatch):
    """The clients of librdkafka would give up after ten seconds, and say nothing of the reason."""
    lose_credentials(monkeypatch)
    url = KafkaUrl.parse(URL)
    topics, started_s = KafkaTopics(url), time.monotonic()
    with pytest.raises(ChangelogError, match=MISSING):
        topics.describe("a topic")
    assert "No broker of" in topics.silent()
    assert time.monotonic() - started_s < 5
    with pytest.raises(AuthenticationFailedError, match=MISSING):
        asyncio.run(url.aiokafka()["sasl_oauth_token_provider"].token())


def test_half_of_the_credentials_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(KafkaException, match=r"cannot be had: Partial .* missing: AWS_SECRET_ACCESS_KEY"):
        KafkaUrl.parse(URL).librdkafka()


def test_credentials_that_are_lost_later_are_logged(monkeypatch: pytest.MonkeyPatch, caplog):
    callback = KafkaUrl.parse(URL).librdkafka()["oauth_cb"]
    callback("")
    lose_credentials(monkeypatch)
    with caplog.at_level(logging.WARNING), pytest.raises(KafkaException, match=MISSING):
        callback("")
    assert "AWS credentials for Amazon MSK in eu-west-1 cannot be had" in caplog.text


SIGN = """
import asyncio, sys
from forebay.logs import configure_logs
from forebay_changelog.kafka.url import KafkaUrl
configure_logs("debug", "text")
url = KafkaUrl.parse(sys.argv[1])
print(url.librdkafka()["oauth_cb"]("")[0])
print(asyncio.run(url.aiokafka()["sasl_oauth_token_provider"].token()))
"""


def test_no_log_shows_a_credential():
    """Not even the most verbose, where the signer's library shows the session and what it signs."""
    run = subprocess.run([sys.executable, "-c", SIGN, URL], capture_output=True, text=True, timeout=60)
    tokens = run.stdout.split()
    assert [signed(token)[1] for token in tokens] == ["AKIDFIRST"] * 2, run.stderr
    for secret in (SECRET, SESSION, "AKIDFIRST", *tokens):
        assert secret not in run.stderr


def test_without_its_packages_the_extra_is_named():
    parsed = run_bare(f"from forebay_changelog.kafka.url import KafkaUrl; KafkaUrl.parse({URL!r})", extra="kafka")
    assert "sasl.mechanism=AWS_MSK_IAM needs the msk extra: pip install 'forebay[msk]'" in parsed.stderr
    assert parsed.stderr.strip().endswith("(aws_msk_iam_sasl_signer is missing)")
