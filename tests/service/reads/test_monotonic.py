"""Reads that pass their last token on never go back, whichever of two replicas answers (invariant 8)."""

import json
from math import inf
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.position import decode_position, later_position
from forebay.stored_values import stamp
from forebay.streams_metadata import StreamsMetadataState
from forebay.task_ids import TaskId
from forebay.topology_file import parse_topology
from forebay.wire.parameters import ReadParameters
from forebay_worker.reads.admission import Admission, Refused
from forebay_worker.reads.keys import Reads
from forebay_worker.state.memory import MemoryStore
from forebay_worker.tasks.replica import Replica
from tests.support.held_reads import IN_MEMORY

TOPOLOGY = parse_topology(
    {"application_id": "a", "subtopology": [{"name": "t", "partitions": 1, "store": [{"name": "s"}]}]}
)
SPEC = TOPOLOGY.stores["s"]
KEY = SPEC.stored_keys.prefix(b"k")
LOGS = st.lists(st.sampled_from(["set", "delete", "other"]), min_size=1, max_size=12)
"""What each record does to the key."""
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["begin", "write", "finish", "read"]), st.integers(1, 4)),
    max_size=60,
)


class Copy:
    """A replica that follows a log in steps, as its applier does, and answers reads with the real code.

    Below ``compacted_to`` its log has lost what later records replaced, so it is at no point of history before.
    """

    def __init__(self, log: list[str], compacted_to: int) -> None:
        self._log = log
        self._compacted_to = compacted_to
        self.replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"), "log")
        self.finish()
        metadata = StreamsMetadataState(TOPOLOGY.stores)
        tasks = SimpleNamespace(replicas={("s", 0): self.replica}, doubts={})
        membership = SimpleNamespace(lease_until_boot_ms=inf)
        self._reads = Reads(Admission(TOPOLOGY, metadata, "h:1", tasks, membership), 1 << 20, IN_MEMORY)

    def begin(self, records: int) -> None:
        progress = self.replica.view.progress
        to = max(progress.applying_to, min(progress.position + records, len(self._log)))
        self.replica.publish(progress=progress._replace(applying_to=to))

    def write(self) -> None:
        progress = self.replica.view.progress
        for offset in range(progress.position, progress.applying_to):
            if self._log[offset] == "set" and not self._replaced(offset):
                self.replica.view.store.put(KEY, stamp(offset) + b"%d" % offset)
            elif self._log[offset] == "delete":
                self.replica.view.store.delete(KEY)
        self.replica.view.store.commit({})

    def _replaced(self, offset: int) -> bool:
        return any(what != "other" for what in self._log[offset + 1 : self._compacted_to])

    def finish(self) -> None:
        self.write()
        progress = self.replica.view.progress
        history = progress.applying_to if progress.applying_to >= self._compacted_to else None
        self.replica.publish(
            progress=progress._replace(position=progress.applying_to, consistent_position=history)
        )
        self.replica.publish(restored=self.replica.view.restored or history is not None)

    def read(self, token: str | None) -> tuple[int, int | None, str]:
        """Status, value and position."""
        futures = ReadParameters(min_position=None if token is None else decode_position(token))
        try:
            answer = self._reads.key("s", futures).answer(b"k")
        except Refused as refused:
            answer = refused.answer()
        document = json.loads(answer.body)
        return answer.status, document.get("value"), document["position"]


def value_at(log: list[str], position: int) -> int | None:
    """The key's value once this many records are applied."""
    for offset in range(position - 1, -1, -1):
        if log[offset] != "other":
            return offset if log[offset] == "set" else None
    return None


@settings(derandomize=True, deadline=None, max_examples=600)
@given(log=LOGS, compacted=st.tuples(st.integers(0, 12), st.integers(0, 12)), steps=STEPS)
def test_a_session_never_goes_back_through_any_failover(log, compacted, steps):
    copies = [Copy(log, min(to, len(log))) for to in compacted]
    token, seen = None, 0
    for which, step, records in steps:
        copy = copies[which]
        if step == "begin":
            copy.begin(records)
        elif step != "read":
            getattr(copy, step)()
        else:
            status, value, position = copy.read(token)
            if status not in (200, 404):
                continue
            token = later_position(token, position)
            # The answer is the log's up to some point, no earlier than that of the answer before.
            points = [at for at in range(seen, len(log) + 1) if value_at(log, at) == value]
            assert points, f"{value!r} after {value_at(log, seen)!r}"
            seen = points[0]
    for copy in copies:
        # A replica that has caught up answers the session.
        copy.begin(len(log))
        copy.finish()
        assert copy.read(token)[0] in (200, 404)
