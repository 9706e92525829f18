"""An answer is for the store and key that were asked, or it is none."""

import asyncio
import json

import pytest

from forebay.errors import UnknownKey
from forebay.store_spec import StoreSpec
from forebay.wire.answers import HttpAnswer, problem_answer
from forebay_router.reads.replica_request import NamedKey
from forebay_router.upstream.connection import AnsweredForAnother
from forebay_router.upstream.pool import ConnectionPool
from tests.support.scripted_worker import answer, worker

KEYS = {"string": 'ä\n"x', "int64": -7, "bytes": "AAE", "json": {"b": [1.5, None], "a": "ü"}}


def spec(codec: str) -> StoreSpec:
    return StoreSpec("s", "key-value", codec, "json", "murmur2", "t", 1)


def value(store: str, key: bytes) -> HttpAnswer:
    return HttpAnswer(200, b"", b'{"store":"%b","key":%b,"value":1}' % (store.encode(), key))


@pytest.mark.parametrize("codec", KEYS)
def test_a_key_is_found_in_its_own_answers_only(codec):
    store = spec(codec)
    plain = store.key_codec.from_json(KEYS[codec])
    named, key = NamedKey.of(store, plain), store.key_codec.to_json(plain)
    miss = problem_answer(UnknownKey("There is none.", store="s", key=json.loads(key)))
    assert named.is_in(value("s", key))
    assert named.is_in(miss)
    other = NamedKey.of(
        store, store.key_codec.from_json({"string": "y", "int64": -71, "bytes": "AAEC", "json": 1}[codec])
    )
    assert not other.is_in(value("s", key))
    assert not other.is_in(miss)
    assert not named.is_in(value("t", key))


async def test_answers_out_of_step_close_their_connection():
    """The second answer is for the first key: it is returned to nobody."""
    first, second = (NamedKey.of(spec("string"), key) for key in (b"a", b"b"))
    body = value("s", b'"a"').body
    pool = ConnectionPool()
    async with worker(answer(body) + answer(body)) as host:
        connection = await pool[host].connection()
        reads = [
            asyncio.create_task(pool[host].request(b"GET / HTTP/1.1\r\n\r\n", named=named.is_in))
            for named in (first, second)
        ]
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        assert isinstance(outcomes[0], HttpAnswer)
        assert isinstance(outcomes[1], AnsweredForAnother)
        assert connection.closed
    pool.close()
