"""Lists gathered page by page from scripted replicas."""

import asyncio
import json
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest

from forebay.clock import boot_ms
from forebay.errors import LagExceedsTolerance, Overloaded
from forebay.lag import Lag
from forebay.position import Position, encode_position, log_digest
from forebay.routing.scattered_list import FIRST_PAGES_BYTES
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo
from forebay.wire.answers import HttpAnswer, problem_answer
from forebay.wire.parameters import ENTRIES_PARAMETERS, parse_parameters
from forebay.wire.scan_pages import ScanPage
from forebay.wire.scans import SCAN_ROUTES, Cursor
from forebay_router.reads import scatter
from forebay_router.reads.refusals import Attempt, late, refusal
from forebay_router.reads.replica_request import TimedAnswer
from forebay_router.reads.scatter import Gather, ScanBroken, ScanRefused
from forebay_web.limits import Held, Limit, Peer
from forebay_web.routes import continued

ENTRIES = next(route for route in SCAN_ROUTES if route.items == "entries")
POSITION = encode_position(Position(log_digest("sqlite:log"), {0: 1}))
REFUSED, CONFLICT = HttpAnswer(412, b"", b"{}"), HttpAnswer(409, b"", b"{}")


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    """Workers give their own answers."""

    async def ask(router, *request):
        answer = await router.ask(*request)
        decoded = ScanPage.decode(answer.body) if answer.status == 200 else None
        return TimedAnswer(answer, scatter.boot_ms(), decoded, len(answer.body))

    monkeypatch.setattr(scatter, "ask", ask)


def page(key: bytes, lag: Lag, *, more: bool) -> HttpAnswer:
    source = {"partition": 0, "position": POSITION, "role": "active", "host": "h:1", "lag": lag.document()}
    return HttpAnswer(200, b"", ScanPage([key], [b'{"key":"%b"}' % key[1:]], more, source, key).encode())


class Workers:
    """Stands for all workers: gives each partition's pages in turn."""

    def __init__(self, *pages: list[HttpAnswer], pause_s: float = 0.0) -> None:
        self._pages = dict(enumerate(pages))
        self._pause_s = pause_s
        self.spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", len(pages))
        self.requested: list[int] = []
        self.preferred: list[str] = []
        self.targets: list[bytes] = []
        self.bodies: list[bytes | None] = []
        self.memory = Limit("memory", 64 << 20, "no memory")
        self.at_once = self.max_at_once = self.max_held_bytes = 0

    def router(self):
        return SimpleNamespace(
            spec=lambda store: self.spec,
            ask=self.ask,
            deadline=lambda parameters: boot_ms() + (parameters.timeout_ms or 5_000),
            tolerance=lambda spec, parameters: parameters.tolerance_for(spec),
        )

    async def ask(self, request, parameters, deadline_boot_ms):
        self.requested.append(request.partition)
        self.preferred.append(parameters.prefer)
        self.targets.append(request.target)
        self.bodies.append(request.body)
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        self.max_held_bytes = max(self.max_held_bytes, self.memory.used)
        try:
            await asyncio.sleep(self._pause_s)
            return self._pages[request.partition].pop(0)
        finally:
            self.at_once -= 1

    async def gather(self, query: bytes = b"", memory: Held | None = None, cursor: str | None = None) -> Gather:
        parameters = continued(parse_parameters(query, ENTRIES_PARAMETERS), cursor)
        memory = memory or Held(self.memory, Peer("a"))
        return await Gather.begin(self.router(), ENTRIES, "s", None, b"/", query, parameters, memory)


async def test_the_lag_of_a_list_is_the_worst_of_all_its_pages():
    workers = Workers(
        [page(b"\x01a", Lag(50_000, 9_000, None), more=True), page(b"\x01b", Lag(0, 0, None), more=False)]
    )
    gather = await workers.gather()
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert [entry["key"] for entry in document["entries"]] == ["a", "b"]
    assert document["lag"]["record_lag"] == 50_000
    assert document["lag"]["time_lag_ms"] >= 9_000
    assert gather.lag().record_lag == 50_000


async def test_time_until_sending_adds_to_a_pages_lag(monkeypatch):
    now_ms = 1_000.0
    monkeypatch.setattr("forebay_router.reads.scatter.boot_ms", lambda: now_ms)
    gather = await Workers([page(b"\x01a", Lag(3, 5, 7), more=False)]).gather()
    now_ms += 49.5
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert document["lag"] == Lag(3, 55, 57).document()
    assert gather.lag() == Lag(3, 55, 57)


async def test_a_list_stopped_between_pieces_ends_before_them(monkeypatch):
    """A router that is stopped while a list is sent states no figure beyond the bound, and nothing as complete."""
    now_ms = 1_000.0
    monkeypatch.setattr("forebay_router.reads.scatter.boot_ms", lambda: now_ms)
    monkeypatch.setattr("forebay_router.reads.scatter._PIECE_BYTES", 1)
    pages = [page(b"\x01%c" % letter, Lag(0, 0, 0), more=False) for letter in b"ab"]
    gather = await Workers(*([each] for each in pages)).gather(b"max_time_lag_ms=20")
    body = gather.body()
    pieces = [await anext(body)]
    now_ms += 1_000
    pieces += [piece async for piece in body]
    document = json.loads(b"".join(pieces))
    assert [entry["key"] for entry in document["entries"]] == ["a"]
    assert document["lag"]["time_lag_ms"] == 0
    assert document["next"] is not None


async def test_a_page_that_left_its_bounds_is_read_again_from_the_active():
    """A standby at the edge of the bounds would soon leave them again."""
    standby, active = page(b"\x01a", Lag(0, 5_001, 0), more=False), page(b"\x01a", Lag(0, 0, 0), more=False)
    workers = Workers([standby, active])
    gather = await workers.gather(b"max_time_lag_ms=5000&prefer=any")
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert [entry["key"] for entry in document["entries"]] == ["a"]
    assert workers.preferred == ["any", "active"]


async def test_a_list_stopped_before_its_first_piece_is_refused(monkeypatch):
    now_ms = 1_000.0
    monkeypatch.setattr("forebay_router.reads.scatter.boot_ms", lambda: now_ms)
    gather = await Workers([page(b"\x01a", Lag(0, 0, 0), more=False)]).gather(b"max_time_lag_ms=20")
    now_ms += 1_000
    with pytest.raises(ScanRefused) as refused:
        await anext(gather.body())
    assert refused.value.answer.status == 412
    assert b'"time_lag_ms":1000' in refused.value.answer.body


async def test_an_empty_list_stopped_at_its_end_goes_on_with_a_cursor(monkeypatch):
    """What was searched within the bounds need not be searched again."""
    now_ms = 1_000.0
    monkeypatch.setattr("forebay_router.reads.scatter.boot_ms", lambda: now_ms)
    workers = Workers([nothing_up_to(b"\x01b"), page(b"\x01c", Lag(0, 0, 0), more=False)])
    ask = workers.ask

    async def ask_late(*arguments):
        nonlocal now_ms
        now_ms += 1_000 if workers.requested else 0
        return await ask(*arguments)

    workers.ask = ask_late
    gather = await workers.gather(b"max_time_lag_ms=20")
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert document["entries"] == []
    assert document["lag"]["time_lag_ms"] == 0
    assert document["next"] is not None


async def test_once_a_partition_refuses_nothing_more_is_requested():
    first = page(b"\x01a", Lag(0, 0, 0), more=True)
    workers = Workers([first, first], [REFUSED])
    with pytest.raises(ScanRefused):
        await workers.gather()
    requested = len(workers.requested)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(workers.requested) == requested


async def test_a_scan_of_many_partitions_asks_for_some_at_once():
    workers = Workers(*([page(b"\x01%d" % i, Lag(0, 0, 0), more=False)] for i in range(300)), pause_s=0.001)
    gather = await workers.gather()
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert len(document["entries"]) == 300
    assert 1 < workers.max_at_once <= 64


async def test_router_parameters_are_not_forwarded():
    """They may be written with escapes."""
    seen = []

    async def ask(request, parameters, deadline_boot_ms):
        seen.append(request.target)
        return page(b"\x01a", Lag(0, 0, 0), more=False)

    workers = Workers([])
    workers.ask = ask
    await workers.gather(b"%6Cimit=5&prefer=any")
    assert seen[0].count(b"imit=") == 1


def nothing_up_to(key: bytes) -> HttpAnswer:
    source = {
        "partition": 0,
        "position": POSITION,
        "role": "active",
        "host": "h:1",
        "lag": Lag(0, 0, 0).document(),
    }
    return HttpAnswer(200, b"", ScanPage([], [], True, source, key).encode())


async def test_pages_with_nothing_in_them_are_read_past():
    first = [nothing_up_to(b"\x01b"), nothing_up_to(b"\x01d"), page(b"\x01e", Lag(0, 0, 0), more=False)]
    second = [page(b"\x01a", Lag(0, 0, 0), more=True), page(b"\x01c", Lag(0, 0, 0), more=False)]
    gather = await Workers(first, second).gather()
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert [entry["key"] for entry in document["entries"]] == ["a", "c", "e"]
    assert document["next"] is None


async def test_list_out_of_time_ends_with_a_cursor(monkeypatch):
    """It is not cut off, and the cursor goes on from there."""
    gather = await Workers([page(b"\x01a", Lag(0, 0, 0), more=True), nothing_up_to(b"\x01m")]).gather()
    late = gather.no_page_after_boot_ms + 1
    with monkeypatch.context() as patched:
        patched.setattr("forebay_router.reads.scatter.boot_ms", lambda: late)
        document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert [entry["key"] for entry in document["entries"]] == ["a"]
    assert document["next"] is not None
    onward = Workers([page(b"\x01n", Lag(0, 0, 0), more=False)])
    gather = await onward.gather(b"cursor=" + document["next"].encode())
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert [entry["key"] for entry in document["entries"]] == ["n"]


async def test_a_list_that_would_leave_its_bounds_ends_with_a_cursor(monkeypatch):
    now_ms = 1_000.0
    monkeypatch.setattr("forebay_router.reads.scatter.boot_ms", lambda: now_ms)
    workers = Workers([page(b"\x01%c" % letter, Lag(0, 0, 0), more=True) for letter in b"abcdefghijkl"])
    ask = workers.ask

    async def ask_slowly(*arguments):
        nonlocal now_ms
        now_ms += 30
        return await ask(*arguments)

    workers.ask = ask_slowly
    gather = await workers.gather(b"max_time_lag_ms=100")
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert 50 < document["lag"]["time_lag_ms"] <= 100
    assert 2 <= len(document["entries"]) < 6
    assert document["next"] is not None


async def test_lost_partitions_lag_counts_for_its_items():
    """A partial list has items of the partition from before its loss."""
    behind = [page(b"\x01a", Lag(50_000, 9_000, None), more=True), REFUSED]
    gather = await Workers(behind, [page(b"\x01b", Lag(0, 0, 0), more=False)]).gather(b"allow_partial=true")
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert [entry["key"] for entry in document["entries"]] == ["a", "b"]
    assert (document["complete"], document["missing"]) == (False, [0])
    assert document["lag"]["record_lag"] == 50_000


async def test_page_age_counts_from_its_arrival(monkeypatch):
    """The page may be taken later."""
    now_ms = 1_000.0
    monkeypatch.setattr("forebay_router.reads.scatter.boot_ms", lambda: now_ms)
    fast = [page(b"\x01a", Lag(0, 0, 0), more=True), page(b"\x01b", Lag(3, 5_000, 7), more=False)]
    gather = await Workers(fast).gather()
    for _ in range(5):  # The second page comes while nobody takes it.
        await asyncio.sleep(0)
    now_ms += 500
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert document["lag"]["time_lag_ms"] == 5_500


async def test_lists_begin_and_read_ahead_only_while_there_is_memory():
    more = page(b"\x01a", Lag(0, 0, 0), more=True)
    workers = Workers([more, more, more], [more, more, more])
    workers.memory = Limit("memory", 2 * FIRST_PAGES_BYTES, "no memory")
    held = Held(workers.memory, Peer("a"))
    gather = await workers.gather(memory=held)
    await asyncio.sleep(0)
    assert workers.requested == [0, 1, 0, 1]
    assert 0 < held.amount < 10 * len(more.body)
    another = Peer("another")
    workers.memory.count(another, FIRST_PAGES_BYTES)
    with pytest.raises(Overloaded, match="no memory"):
        await workers.gather(b"timeout_ms=1", memory=Held(workers.memory, another))
    workers.memory.count(another, -FIRST_PAGES_BYTES)
    gather.drop()
    assert (held.amount, workers.memory.used) == (0, 0)


@pytest.mark.parametrize(("key_bytes", "at_once"), [(100, 8), (400_000, 3), (1_200_000, 1)])
async def test_lists_after_long_keys_ask_few_partitions_at_once(key_bytes, at_once):
    """The cursor is encoded once, and counted for each partition that is asked."""
    workers = Workers(*([page(b"\x02", Lag(0, 0, 0), more=False)] for _ in range(8)), pause_s=0.001)
    held = Held(workers.memory, Peer("a"))
    scan = (await Workers([page(b"\x02", Lag(0, 0, 0), more=False)]).gather()).scan
    cursor = Cursor(scan.digest, b"\x01" + b"x" * key_bytes).encode()
    gather = await workers.gather(memory=held, cursor=cursor)
    assert len(workers.requested) == 8
    assert workers.max_at_once == at_once
    assert all(body is workers.bodies[0] for body in workers.bodies)
    assert workers.max_held_bytes >= FIRST_PAGES_BYTES + at_once * len(cursor)
    assert held.amount < 8_000
    gather.drop()
    assert (held.amount, workers.memory.used) == (0, 0)


async def test_lists_after_long_keys_begin_only_with_memory():
    workers = Workers([page(b"\x02", Lag(0, 0, 0), more=False)])
    scan = (await workers.gather()).scan
    workers.memory = Limit("memory", FIRST_PAGES_BYTES * 3 // 2, "no memory")
    cursor = Cursor(scan.digest, b"\x01" + b"x" * (FIRST_PAGES_BYTES // 2)).encode()
    with pytest.raises(Overloaded, match="no memory"):
        await workers.gather(b"timeout_ms=1", cursor=cursor)
    assert (len(workers.requested), workers.memory.used) == (1, 0)


async def test_later_pages_after_long_keys_are_sent_one_by_one():
    """Each partition's page ends at another long key."""
    keys = [b"\x01%c" % letter + b"x" * 1_200_000 for letter in b"abc"]
    workers = Workers(*([page(key, Lag(0, 0, 0), more=True), REFUSED] for key in keys), pause_s=0.001)
    gather = await workers.gather()
    workers.max_at_once = 0
    with pytest.raises(ScanBroken):
        async for _ in gather.body():
            pass
    assert workers.max_at_once == 1
    assert workers.max_held_bytes >= 1_600_000
    gather.drop()
    assert workers.memory.used == 0


async def test_a_later_page_asks_for_the_position_of_the_one_before():
    """Of whichever replica: it must not be behind the one that gave the page before."""
    workers = Workers(
        [page(b"\x01a", Lag(0, 0, 0), more=True), page(b"\x01b", Lag(0, 0, 0), more=False)],
    )
    gather = await workers.gather()
    async for _ in gather.body():
        pass
    first, second = (dict(parse_qsl(target.partition(b"?")[2].decode())) for target in workers.targets)
    assert "cursor" not in first
    cursor = Cursor.decode(second["cursor"], gather.scan)
    assert (cursor.last, cursor.at) == (b"\x01a", POSITION)


async def test_what_a_page_leaves_out_is_in_its_cursor():
    workers = Workers([page(b"\x01a", Lag(0, 0, 0), more=True)], [REFUSED])
    gather = await workers.gather(b"allow_partial=true&limit=1")
    document = json.loads(b"".join([piece async for piece in gather.body()]))
    assert (document["complete"], document["missing"]) == (False, [1])
    cursor = Cursor.decode(document["next"], gather.scan)
    assert (cursor.missing, cursor.at) == ((1,), POSITION)


@pytest.mark.parametrize(
    ("answers", "status"), [(["late", "late"], 504), (["late", "unready"], 503), (["unready", "unready"], 503)]
)
async def test_empty_partial_list_states_all_attempts(answers, status):
    host = HostInfo("h", 1)
    made = {"late": late, "unready": refusal}
    refused = [made[name]("s", i, [Attempt(host, f"attempt {i}")]) for i, name in enumerate(answers)]
    with pytest.raises(ScanRefused) as caught:
        await Workers(*([answer] for answer in refused)).gather(b"allow_partial=true")
    problem = json.loads(caught.value.answer.body)
    assert problem["status"] == caught.value.answer.status == status
    expected = [{"partition": i, "host": "h:1", "outcome": f"attempt {i}"} for i in range(2)]
    assert problem["attempts"] == expected


async def test_partial_list_beyond_bounds_states_all_attempts():
    host = HostInfo("h", 1)
    beyond = problem_answer(LagExceedsTolerance("beyond"))
    refused = [refusal("s", i, [Attempt(host, "answered", beyond)]) for i in range(2)]
    with pytest.raises(ScanRefused) as caught:
        await Workers(*([answer] for answer in refused)).gather(b"allow_partial=true")
    problem = json.loads(caught.value.answer.body)
    assert (problem["status"], len(problem["attempts"])) == (412, 2)
    assert {attempt["status"] for attempt in problem["attempts"]} == {412}


@pytest.mark.parametrize(("refused", "status"), [([REFUSED, REFUSED], 412), ([REFUSED, CONFLICT], 409)])
async def test_a_partial_list_of_nothing_is_refused(refused, status):
    """There is nothing that could be had; and a request at fault is, whatever else can be read."""
    with pytest.raises(ScanRefused) as caught:
        await Workers(*([answer] for answer in refused)).gather(b"allow_partial=true")
    assert caught.value.answer.status == status
