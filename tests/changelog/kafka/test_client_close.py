"""Kafka clients are disposed of without harm to whoever has done with them."""

import subprocess
import sys
import threading

from forebay_changelog.kafka.client_close import close
from tests.support.cluster import free_port, wait_until

_COLLECTED_IN_ITS_OWN_THREAD = """
import gc, sys, threading
from confluent_kafka.admin import OffsetSpec
from forebay_changelog.kafka.admin_polls import ask_offsets
from forebay_changelog.kafka.topics import KafkaTopics
from forebay_changelog.kafka.url import KafkaUrl
from forebay.task_ids import TopicPartition

class Holder:
    pass

gc.disable()
holder, done = Holder(), threading.Event()
holder.itself, holder.topics = holder, KafkaTopics(KafkaUrl.parse(sys.argv[1]))
(future,) = ask_offsets(holder.topics.admin.client, [TopicPartition("t", 0)], OffsetSpec.latest()).values()

def collect(_):
    print("not main" if threading.current_thread() is not threading.main_thread() else "main")
    print("collected" if gc.collect() else "nothing")
    done.set()

future.add_done_callback(collect)
del holder
assert done.wait(20)
"""


_PRODUCER_COLLECTED_IN_ITS_OWN_THREAD = """
import gc, sys, threading, time
from confluent_kafka import Producer
from forebay_changelog.kafka.transactional_writer import TransactionalWriter
from forebay_changelog.kafka.url import KafkaUrl

class Holder:
    pass

gc.disable()
done, dropped = threading.Event(), threading.Event()

def token(_):
    # The first is waited for by whoever makes the client.
    if dropped.is_set():
        print("collected" if gc.collect() else "nothing")
        done.set()
    return "t", time.time() + 2

url = KafkaUrl.parse(sys.argv[1])
holder = Holder()
holder.itself, holder.writer = holder, TransactionalWriter(url, "t", "w", "q")
oauth = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER", "oauth_cb": token}
holder.writer._producer = Producer({"bootstrap.servers": url.bootstrap_servers, **oauth})
del holder
dropped.set()
assert done.wait(20)
"""


_ENDED_WITH = """
import sys
from forebay_changelog.kafka.topics import KafkaTopics
from forebay_changelog.kafka.url import KafkaUrl

topics = KafkaTopics(KafkaUrl.parse(sys.argv[1]))
topics.admin
"""


class Hanging:
    """A consumer whose brokers went away at the wrong moment, which cannot be brought about at will."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.ended = False

    def close(self) -> None:
        self.may_end.wait(30)
        self.ended = True


def ran(script: str) -> subprocess.CompletedProcess[str]:
    url = f"kafka://127.0.0.1:{free_port()}"
    return subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=60)


def test_admin_client_collected_in_its_own_thread():
    """The process goes on where the garbage collector frees an admin client in the client's own thread."""
    process = ran(_COLLECTED_IN_ITS_OWN_THREAD)
    assert (process.stdout.split("\n")[:2], process.returncode) == (["not main", "collected"], 0), process.stderr


def test_a_producer_of_heartbeats_collected_in_its_own_thread():
    """The same where one that asks for a token is found by the garbage collector, as in a driver of Spark."""
    process = ran(_PRODUCER_COLLECTED_IN_ITS_OWN_THREAD)
    assert (process.stdout, process.returncode) == ("collected\n", 0), process.stderr


def test_a_process_ends_that_still_has_an_admin_client():
    assert ran(_ENDED_WITH).returncode == 0


def test_a_consumer_that_hangs_as_it_is_closed_holds_nobody_up(caplog):
    hanging = Hanging()
    try:
        close(hanging, patience_s=0.1)
        assert "still not closed" in caplog.text
        assert not hanging.ended
    finally:
        hanging.may_end.set()
    wait_until(lambda: hanging.ended, "its end")


def test_a_consumer_that_is_closed_in_time_is_waited_for():
    quick = Hanging()
    threading.Timer(0.2, quick.may_end.set).start()
    close(quick)
    assert quick.ended


def test_nothing_is_waited_for_without_patience(caplog):
    hanging = Hanging()
    try:
        close(hanging, patience_s=0)
        assert not hanging.ended
    finally:
        hanging.may_end.set()
    assert caplog.text == ""
