"""URLs of file systems, and what messages show of them."""

import socket
import threading
import time

import pytest

from forebay.errors import ConfigurationError
from forebay.file_systems import open_file_system, require_file_systems, shown_url, without_secrets

SECRET = "abc/def+ghi"


@pytest.mark.parametrize("url", ["ftp://host/x", "s3:bucket", "/var/kept", "", "x"])
def test_what_is_no_url_of_a_file_system_is_refused(url):
    with pytest.raises(ConfigurationError, match="use file://"):
        require_file_systems(url, "snapshots")


@pytest.mark.parametrize(
    "url",
    [
        f"s3://KEYID:{SECRET}@bucket/prefix",
        "s3://KEYID:abc%2Fdef%2Bghi@bucket/prefix",
        f"s3://bucket/prefix?secret_key={SECRET}",
        f"abfs://container@account/prefix?sig={SECRET}#x",
    ],
)
def test_no_message_shows_credentials(url):
    assert "def" not in shown_url(url)
    for text in (f"cannot open {url}", f"https://host/x?sig={SECRET}&sv=1 failed", f"refused {SECRET} of KEYID"):
        assert "def" not in without_secrets(OSError(text), url)


@pytest.mark.parametrize("url", ["s3://[x/p", f"s3://KEYID:{SECRET}@bucket#x/prefix", "abfs://?sig=x"])
def test_a_url_that_pyarrow_does_not_take_is_refused_in_words(url):
    with pytest.raises(ConfigurationError, match="pyarrow cannot open") as caught:
        open_file_system(url, "snapshots")
    assert "def" not in str(caught.value)


def test_a_server_that_says_nothing_is_not_waited_for_long(monkeypatch):
    """By default, one request takes minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []
        threading.Thread(target=_accept, args=(server, accepted), daemon=True).start()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        found = open_file_system(
            f"s3://bucket/x?region=us-east-1&scheme=http&endpoint_override={endpoint}", "snapshots"
        )
        started_s = time.monotonic()
        with pytest.raises(OSError, match="bucket"):
            found.filesystem.get_file_info("bucket/x/y")
        assert time.monotonic() - started_s < 40
        for connection in accepted:
            connection.close()


def _accept(server: socket.socket, accepted: list[socket.socket]) -> None:
    try:
        while True:
            accepted.append(server.accept()[0])
    except OSError:
        pass
