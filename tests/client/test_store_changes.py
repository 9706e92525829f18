"""Requests for the changes of many keys."""

from forebay.store_spec import StoreSpec
from forebay_client.store_changes import StoreChangesRequest


def test_a_store_of_a_kind_that_only_its_servers_know_is_followed_by_keys():
    """Clients are upgraded last."""
    spec = StoreSpec("s", "of-later", "string", "json", "murmur2", "t", 1)
    assert StoreChangesRequest("s", ["a"], None, "b", None, None).parameters(spec) == {
        "keys": '["a"]',
        "prefix": None,
        "from": b"b",
        "to": None,
    }
