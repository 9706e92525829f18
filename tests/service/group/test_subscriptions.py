"""Which members a leader gives tasks, and how often it warns of the rest."""

import logging

import pytest

from forebay.streams_metadata import HostInfo
from forebay_worker.group.messages import SubscriptionInfo
from forebay_worker.group.subscriptions import SubscriptionReader, one_a_process


def subscription(name: str, *, incarnation: int = 1, host: str | None = None) -> SubscriptionInfo:
    return SubscriptionInfo(name, incarnation, HostInfo(host or name, 1), "fingerprint")


@pytest.fixture
def reader() -> SubscriptionReader:
    return SubscriptionReader()


def test_unreadable_subscription_is_skipped_with_a_warning(reader, caplog):
    """The warning is logged once."""
    messages = {"a": subscription("a").encode(), "b": b"rubbish"}
    for _ in range(3):
        assert reader.read(messages).keys() == {"a"}
    [warning] = caplog.messages
    assert warning.startswith("the member b is given no tasks: SubscriptionInfo of 7 bytes is damaged")


def test_first_started_member_keeps_a_shared_address(reader, caplog):
    """The other one is reported once."""
    caplog.set_level(logging.ERROR)
    members = {info.process_id: info for info in (subscription("b", incarnation=2, host="a"), subscription("a"))}
    for _ in range(2):
        assert reader.one_an_address(members).keys() == {"a"}
    [error] = caplog.messages
    assert error.startswith("the worker b gets no tasks: it advertises a:1, as the worker a does.")


def test_of_two_lives_of_a_process_the_later_counts():
    later, earlier = subscription("a", incarnation=2, host="new"), subscription("a")
    assert one_a_process({"2": later, "1": earlier}) == {"a": later}
