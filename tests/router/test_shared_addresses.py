import socket

import pytest

from forebay.errors import ListenAddressInUse
from forebay.streams_metadata import HostInfo
from forebay_router.command import claim
from tests.support.cluster import free_port


def test_an_address_is_claimed_once_at_a_time():
    listen = HostInfo("127.0.0.1", free_port())
    for name in ("127.0.0.1", "localhost"):
        with claim(listen), pytest.raises(ListenAddressInUse, match="Address already in use"):
            claim(HostInfo(name, listen.port))
    claim(listen).close()


@pytest.mark.parametrize("options", [[], [socket.SO_REUSEPORT]], ids=["alone", "shared"])
def test_address_in_use_by_others_cannot_be_claimed(options):
    with socket.socket() as stranger:
        for option in options:
            stranger.setsockopt(socket.SOL_SOCKET, option, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(ListenAddressInUse):
            claim(HostInfo(*stranger.getsockname()))
