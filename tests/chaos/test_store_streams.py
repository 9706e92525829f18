"""Events of a store's stream become reads with what the checker needs."""

import json
from dataclasses import replace
from typing import Any

from forebay.client import Absent, Entry, Reset, StoreLag, Values
from forebay.errors import NoReplica
from forebay.lag import Lag
from forebay.position import Position, encode_position
from forebay.wire.answers import ReplicaInfo
from forebay.wire.server_sent_events import Event
from forebay_web.store_changes.cursors import ChangesCursor, encode_id
from tests.chaos.history import Followed, Portion, Reached, Read
from tests.chaos.store_streams import of_change, of_event, reached_of

READ = Read("r", "store-change", "router", "t", "counts", 1.0, 2.0, 0)
FOLLOWED = Followed("s", "opened", prefix="k", partitions=(1, 3))
TOKEN = encode_position(Position(b"identity", {3: 42}))
LAG = {"record_lag": 1, "time_lag_ms": None, "age_ms": 5}
SOURCE: dict[str, Any] = {"partition": 3, "position": TOKEN, "role": "standby", "host": "w1", "lag": LAG}
PORTION = {3: Portion(42, "standby", "w1", 1, None, 5)}
VALUE = {"of": ["k"], "serial": 1}
WHOLE = ChangesCursor(b"identity", 40, 42)


def identity(**cursors: ChangesCursor) -> str:
    return encode_id(b"selected", (1, 3), {int(name[1:]): cursor for name, cursor in cursors.items()})


def received(name: str, document: dict[str, Any], event_id: str | None = None) -> Read:
    return of_event(READ, FOLLOWED, Event(name, json.dumps(document).encode(), event_id))


def test_an_id_says_how_much_of_each_partition_was_sent():
    assert reached_of(identity(p1=WHOLE, p3=WHOLE._replace(after=b"k")), FOLLOWED) == {
        1: Reached(40, 42),
        3: Reached(0, 42),
    }
    assert reached_of(identity(p3=WHOLE), FOLLOWED) == {3: Reached(40, 42)}
    assert reached_of("", FOLLOWED) is reached_of(None, FOLLOWED) is None


def test_items_are_keys_or_windows_with_or_without_a_value():
    values = received("values", {"entries": [{"key": "k", "value": VALUE}], **SOURCE}, identity(p3=WHOLE))
    said = replace(FOLLOWED, event="values", reached={3: Reached(40, 42)})
    expected = replace(READ, status=200, items=((("k",), VALUE),), portions=PORTION, followed=said)
    assert values == expected
    gone = received("absent", {"windows": [{"key": "k", "start_ms": 5, "end_ms": 6}], **SOURCE})
    assert gone.items == ((("k", 5), None),)


def test_resets_lags_and_problems_name_what_they_are_of():
    reset, lag = received("reset", {"partitions": [3]}), received("lag", {"lag": LAG})
    assert reset.followed == replace(FOLLOWED, event="reset", partitions=(3,))
    assert lag.followed == replace(FOLLOWED, event="lag", lag=(1, None, 5))
    refused = received("problem", {**NoReplica("none").document(), "partitions": [1]})
    assert (refused.status, refused.problem, refused.followed.partitions) == (503, "no-replica", (1,))
    # One that ends the stream is of no partition.
    assert received("problem", NoReplica("none").document()).followed.partitions == ()


def test_the_clients_changes_are_read_alike():
    source = ReplicaInfo(3, TOKEN, "standby", "w1", Lag(1, None, 5))
    document = {"entries": [{"key": "k", "value": VALUE}], **SOURCE}
    values = Values("counts", (Entry("k", VALUE, 7),), source)
    assert of_change(READ, FOLLOWED, values) == received("values", document)
    gone = Absent("counts", (Entry("k", None, None),), source)
    assert of_change(READ, FOLLOWED, gone).items == ((("k",), None),)
    assert of_change(READ, FOLLOWED, Reset("counts", (3,))) == received("reset", {"partitions": [3]})
    assert of_change(READ, FOLLOWED, StoreLag("counts", Lag(1, None, 5))) == received("lag", {"lag": LAG})
    assert of_change(READ, FOLLOWED, NoReplica("none")).problem == "no-replica"
