"""The blocking client is the asynchronous one without ``async`` and ``await``."""

from client.generate import generated


def test_the_blocking_client_is_that_of_the_asynchronous_one():
    for path, text in generated().items():
        assert path.read_text() == text, "run python -m client.generate"
