"""The file of a listening Unix socket: who may connect, and when it is replaced."""

import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, ListenAddressInUse, SettingError
from forebay.listen_addresses import UnixAddress
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import inherited_listener, unix_listener
from forebay_web.server import advertised

OTHER_GROUP = 1 if os.geteuid() == 0 else os.getgid()
"""Root may give a file to any group, others to their own."""


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(tmp_path / "router.sock")


def connects(address: UnixAddress) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(os.fspath(address.path)) == 0


def test_only_its_user_and_its_group_may_connect(address):
    with unix_listener(address, str(OTHER_GROUP)):
        made = address.path.stat()
        assert stat.S_IMODE(made.st_mode) == 0o660
        assert made.st_gid == OTHER_GROUP
        assert connects(address)


def test_unknown_group_is_named(address):
    with pytest.raises(ConfigurationError, match="no such group: 'nobody-has-this'"):
        unix_listener(address, "nobody-has-this")
    assert not connects(address)


def test_the_file_of_a_process_that_is_gone_is_replaced(address):
    unix_listener(address, None).close()
    assert not connects(address)
    with unix_listener(address, None):
        assert connects(address)


def test_a_socket_that_somebody_answers_on_is_left_alone(address):
    with unix_listener(address, None):
        with pytest.raises(ListenAddressInUse, match=f"Cannot listen on {address}: another process answers"):
            unix_listener(address, None)
        assert connects(address)


def test_a_socket_whose_queue_is_full_is_left_alone(address):
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as clients:
        busy.bind(os.fspath(address.path))
        busy.listen(0)
        clients.enter_context(socket.socket(socket.AF_UNIX)).connect(os.fspath(address.path))
        with pytest.raises(ListenAddressInUse):
            unix_listener(address, None)


def test_a_file_that_is_no_socket_is_left_alone(address):
    address.path.write_text("kept")
    with pytest.raises(ConfigurationError, match="it must be a socket"):
        unix_listener(address, None)
    assert address.path.read_text() == "kept"


def test_a_directory_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        unix_listener(UnixAddress(tmp_path / "missing" / "router.sock"), None)


def test_inherited_listener_stays_non_blocking(address):
    """A process that starts does not make `accept` block in others."""
    with (
        unix_listener(address, None) as listener,
        inherited_listener(os.dup(listener.fileno())) as inherited,
        inherited.dup(),
    ):
        assert not os.get_blocking(listener.fileno())


def test_unix_only_worker_must_advertise_an_address(address):
    elsewhere = HostInfo("worker-1", 8080)
    assert advertised([address, elsewhere], None) == elsewhere
    assert advertised([address], elsewhere) == elsewhere
    with pytest.raises(SettingError, match="--advertise"):
        advertised([address], None)
