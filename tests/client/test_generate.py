"""The blocking client is the asynchronous one without ``async`` and ``await``."""

from client.generate import GENERATED, generated


def test_the_blocking_client_is_that_of_the_asynchronous_one():
    assert GENERATED.read_text() == generated(), "run python -m client.generate"
