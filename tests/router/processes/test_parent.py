import socket

import pytest

from forebay.errors import ListenAddressInUse
from forebay.streams_metadata import HostInfo
from forebay_router.processes.parent import claim
from forebay_web.processes.parent import pause_before_restart_s
from tests.support.cluster import free_port


def test_dying_child_is_restarted_with_backoff():
    pauses = [0.0]
    while len(pauses) < 9:
        pauses.append(pause_before_restart_s(1.0, pauses[-1]))
    assert pauses[1:] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pause_before_restart_s(60.0, pauses[-1]) == 0.1


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
