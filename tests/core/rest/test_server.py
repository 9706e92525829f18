import asyncio

import pytest
from fastapi import FastAPI

from forebay.errors import ListenAddressInUse
from forebay.metadata import HostInfo
from forebay.rest.server import bind, serve
from tests.cluster import free_port


def test_of_two_that_start_at_one_address_one_says_so_and_ends():
    listen = HostInfo("127.0.0.1", free_port())
    with bind(listen) as first, bind(listen) as second:
        # Nobody listened yet.
        first.listen()
        with pytest.raises(ListenAddressInUse, match=f"Cannot listen on {listen}: Address already in use"):
            serve(
                FastAPI(),
                second,
                drain_ms=0,
                shutdown_timeout_ms=2000,
                on_drain=lambda: None,
                protocol=asyncio.Protocol,
            )
