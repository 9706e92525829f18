"""Full parsers read everything the recogniser accepts as the same request; it leaves alone what either rejects."""

import time

import h11
import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.request_trace import RequestTrace
from forebay_web.fast_path.recogniser import (
    PreparedRequests,
    RecognisedRead,
    Recogniser,
    RequestTemplate,
    recognise,
    recognise_batch,
)

PLAIN = b"GET /v1/stores/counts/keys/a HTTP/1.1\r\nHost: x\r\n\r\n"
BATCH = b"POST /v1/stores/counts/batch-get HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n" + b'{"keys": []}'


class Parsed:
    """What httptools makes of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = 0
        self.body = b""
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method = parser.get_method()
        self.keep_alive = parser.should_keep_alive()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def by_h11(data: bytes) -> tuple[h11.Request, bytes]:
    """The one request that some bytes are, and its body."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request, body = connection.next_event(), b""
    assert isinstance(request, h11.Request)
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    return request, body


TOKENS = st.sampled_from(
    [b"Host", b"host", b"Accept", b"User-Agent", b"X-Odd", b"Content-Length", b"Transfer-Encoding", b"Connection"]
    + [b"Expect", b"Upgrade", b"Origin", b"forebay-deadline-ms", b"Bad Name", b"", b" Leading", b"TE"]
    + [b"Upgrade", b"Connection", b"HTTP2-Settings", b"Proxy-Connection"]
)
VALUES = st.one_of(
    st.sampled_from(
        [
            b"x",
            b"*/*",
            b"keep-alive",
            b"close",
            b"chunked",
            b"0",
            b"5",
            b"",
            b" ",
            b"\x00",
            b"a\x7f",
            b"\xff",
            b"a\tb",
            b"h2c",
            b"h2c, websocket",
            b"Upgrade",
            b"Upgrade, HTTP2-Settings",
            b"keep-alive,upgrade",
            b"upgrade, close",
        ]
    ),
    st.binary(max_size=6),
)
SEPARATORS = st.sampled_from([b": ", b":", b" : ", b":\t", b"  "])
LINE_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])
TARGETS = st.sampled_from(
    [b"/v1/stores/counts/keys/a", b"/v1/stores/counts/keys/%2F%25", b"/v1/stores/c/keys/a?max_record_lag=0"]
    + [
        b"/v1/stores/c/keys/a/windows",
        b"/v1/stores/c/keys/",
        b"/v1/stores/c/keys/%zz",
        b"http://x/v1/stores/c/keys/a",
    ]
    + [b"/v1/stores/c/keys/a#b", b"/v1/stores/c/keys/a b", b"/v1/stores/c/keys/\xc3\xa9", b"/v1/stores/../keys/a"]
    + [b"/v1/stores/c/keys/..", b"/v1/stores/c/keys/.", b"/v1/stores/c/keys/a?b=\x01", b"*"]
)
METHODS = st.sampled_from([b"GET", b"GET", b"GET", b"get", b"HEAD", b"POST", b"GET "])
VERSIONS = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b""])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    lines = [draw(METHODS) + b" " + draw(TARGETS) + b" " + draw(VERSIONS)]
    if draw(st.booleans()):
        lines.append(b"Host: x")
    for _ in range(draw(st.integers(0, 4))):
        lines.append(draw(TOKENS) + draw(SEPARATORS) + draw(VALUES))
    end = draw(LINE_ENDS)
    return end.join(lines) + end + end + draw(st.sampled_from([b"", b"", b"x", b"GET "]))


@settings(max_examples=3000, deadline=None, derandomize=True)
@given(data=requests())
@example(data=PLAIN)
def test_what_is_accepted_is_what_full_parsers_read(data):
    found = recognise(data)
    if found is None:
        return
    whole = data[: found.end]
    target = b"/v1/stores/%b/keys/%b" % (found.template.store.encode(), found.segment)
    target += b"?" + found.template.query if found.template.query or b"?" in whole.split(b" ")[1] else b""
    parsed, (event, _) = Parsed(whole), by_h11(whole)
    assert (parsed.method, parsed.url, parsed.complete, parsed.body) == (b"GET", target, 1, b"")
    assert parsed.keep_alive
    assert (event.method, event.target, event.http_version) == (b"GET", target, b"1.1")


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(at=st.integers(0, len(PLAIN) - 1), byte=st.integers(0, 255))
def test_one_odd_byte_anywhere_is_never_read_differently(at, byte):
    data = PLAIN[:at] + bytes([byte]) + PLAIN[at + 1 :]
    found = recognise(data)
    if found is not None:
        assert Parsed(data[: found.end]).complete == 1
        by_h11(data[: found.end])


BATCH_TARGETS = st.sampled_from(
    [b"/v1/stores/counts/batch-get", b"/v1/stores/c/batch-get?max_record_lag=0", b"/v1/stores/c/batch-get?"]
    + [b"/v1/stores/c/batch-get/", b"/v1/stores/../batch-get", b"http://x/v1/stores/c/batch-get", b"/v1/stores"]
)
BODIES = st.sampled_from([b"", b"{}", b'{"keys": []}', b"\r\n\r\n", b"0\r\n\r\n", PLAIN])
LENGTHS = st.sampled_from([b"0", b"2", b"12", b"012", b"+2", b"2, 2", b"0x2", b"2 ", b"-1", b"", b"1e1", b"5"])


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    lines = [draw(st.sampled_from([b"POST", b"POST", b"POST", b"GET", b"PUT", b"post"]))]
    lines[0] += b" " + draw(BATCH_TARGETS) + b" " + draw(VERSIONS)
    body = draw(BODIES)
    reported = [b"Host: x", b"Content-Length: %d" % len(body)]
    lines += [line for line in reported if draw(st.integers(0, 9))]
    for _ in range(draw(st.integers(0, 3))):
        lines.append(draw(TOKENS) + draw(SEPARATORS) + draw(VALUES | LENGTHS))
    end = draw(LINE_ENDS)
    return end.join(lines) + end + end + body + draw(st.sampled_from([b"", b"", b"", b"x", PLAIN]))


@settings(max_examples=3000, deadline=None, derandomize=True)
@given(data=batches())
@example(data=BATCH)
def test_what_is_accepted_as_a_batch_is_what_full_parsers_read(data):
    found = recognise_batch(data)
    if found is None:
        return
    target = b"/v1/stores/%b/batch-get" % found.template.store.encode()
    target += b"?" + found.template.query if b"?" in data.split(b" ")[1] else b""
    parsed, (event, body) = Parsed(data), by_h11(data)
    assert (parsed.method, parsed.url, parsed.complete, parsed.body) == (b"POST", target, 1, found.body)
    assert parsed.keep_alive
    assert (event.method, event.target, event.http_version, body) == (b"POST", target, b"1.1", found.body)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(at=st.integers(0, len(BATCH) - 1), byte=st.integers(0, 255))
def test_odd_byte_in_a_batch_is_never_read_differently(at, byte):
    """The recogniser reads a batch as a full parser does, or leaves it to the parser."""
    data = BATCH[:at] + bytes([byte]) + BATCH[at + 1 :]
    found = recognise_batch(data)
    if found is not None:
        assert Parsed(data).body == by_h11(data)[1] == found.body


@pytest.mark.parametrize("cut", range(1, len(BATCH)))
def test_a_batch_that_is_not_whole_is_left_alone(cut):
    assert recognise_batch(BATCH[:cut]) is None


@pytest.mark.parametrize("behind", [b"\r\n", b"x", PLAIN, BATCH])
def test_a_batch_with_something_behind_it_is_left_alone(behind):
    assert recognise_batch(BATCH + behind) is None


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 12",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Expect: 100-continue",
        b"Connection: close",
        b"Connection: upgrade, close",
        b"Proxy-Connection: close",
        b"Upgrade: websocket",
        b"Accept: application/vnd.forebay.frames.v1\r\nAccept: */*",
        b"Host: y",
    ],
)
def test_a_batch_that_needs_the_parser_is_left_to_it(header):
    assert recognise_batch(BATCH.replace(b"Content-Length", header + b"\r\nContent-Length")) is None


def test_a_batch_says_whether_its_answer_is_to_be_in_frames():
    requested = {
        accept: recognise_batch(BATCH.replace(b"Host: x", b"Host: x\r\n" + accept))
        for accept in (b"Accept: */*", b"Accept: application/vnd.forebay.frames.v1")
    }
    assert [found is not None and found.frames for found in requested.values()] == [False, True]


SEGMENTS = st.sampled_from(
    [b"a", b"a-1", b"%41", b"%4", b".", b"..", b"...", b"", b"a/b", b"a?b=c", b"a b", b"a\r\nB: c", b"x" * 8200]
)
QUERIES = st.sampled_from([b"", b"?", b"?prefer=any", b"?a=b?c"])
HEADERS = st.sampled_from(
    [b"", b"Origin: http://a\r\n", b"Authorization: Bearer a\r\n", b"Authorization: Bearer b\r\n"]
)
BEHIND = st.sampled_from([b"", b"", b"GET ", PLAIN])
ALIKE = st.builds(
    lambda store, segment, query, headers, behind: (
        b"GET /v1/stores/%b/keys/%b%b HTTP/1.1\r\nHost: x\r\n%b\r\n%b" % (store, segment, query, headers, behind)
    ),
    st.sampled_from([b"counts", b"c"]),
    SEGMENTS,
    QUERIES,
    HEADERS,
    BEHIND,
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(received=st.lists(ALIKE | requests(), max_size=12))
@example(received=[b"\r\nabc\r\n", b"abc"])
@example(received=[PLAIN, PLAIN[:-4]])
@example(received=[PLAIN, PLAIN.replace(b"/a", b"/" + b"a" * 8192)])
@example(received=[PLAIN, PLAIN.replace(b"Host: x", b"Host: y")])
def test_earlier_requests_change_nothing(received):
    prepared_requests = PreparedRequests(lambda template: template)
    recogniser = Recogniser(prepared_requests)
    for data in received:
        alone = recognise(data)
        whole = alone is not None and alone.end == len(data)
        assert recogniser.recognise(data) == ((alone.template, alone.segment) if whole else None)
        for prefix in (b"", b"GET /", PLAIN):
            found = prepared_requests.find(prefix + data, len(prefix))
            if found is None:
                assert alone is None
            else:
                template, begin, segment_end, end = found
                assert RecognisedRead(template, (prefix + data)[begin:segment_end], end - len(prefix)) == alone


TRACE_LINES = st.sampled_from(
    [
        b"X-Request-Id: 7",
        b"x-request-id:",
        b"X-REQUEST-ID:\t8 ",
        b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"Tracestate: a=b",
    ]
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=ALIKE | requests(), lines=st.lists(TRACE_LINES, min_size=1, max_size=4), place=st.integers(0, 3))
def test_a_trace_changes_no_form(data, lines, place):
    """Wherever its lines stand; what follows the request begins where it did."""
    head, ends, rest = data.partition(b"\r\n\r\n")
    parts = head.split(b"\r\n")
    at = 1 + min(place, len(parts) - 1)
    traced = b"\r\n".join([*parts[:at], *lines, *parts[at:]]) + ends + rest
    seen: list[RequestTrace] = []

    def note(template: RequestTemplate, trace: RequestTrace) -> RequestTemplate:
        seen.append(trace)
        return template

    prepared_requests = PreparedRequests(lambda template: template, note)
    alone = prepared_requests.find(data)
    found = prepared_requests.find(traced)
    if alone is None:
        assert found is None
    else:
        assert found == (*alone[:3], alone[3] + len(traced) - len(data))
        given = {line.lower().partition(b":")[0] for line in lines}
        assert len(seen) <= 1
        assert not seen or given & {b"x-request-id", b"traceparent"}


@pytest.mark.parametrize(
    "line", [b"X-Request-Id: \x00", b"X-Request-Id : 7", b"X-Request-Id: \xff", b"X-Request-Id: 7\r\n 8"]
)
def test_a_line_that_parsers_read_differently_is_left_to_the_parser(line):
    assert (
        PreparedRequests(lambda template: template).find(PLAIN.replace(b"Host: x", b"Host: x\r\n" + line)) is None
    )


def test_requests_with_traces_of_their_own_are_of_one_form():
    prepared: list[RequestTemplate] = []
    prepared_requests = PreparedRequests(lambda template: prepared.append(template) or template)
    for number in range(50):
        prepared_requests.find(PLAIN.replace(b"Host: x", b"Host: x\r\nX-Request-Id: %d" % number))
    assert len(prepared) == 1


def test_repeated_request_forms_are_prepared_once(monkeypatch):
    """The memory for request forms that do not repeat is bounded."""
    monkeypatch.setattr("forebay_web.fast_path.recogniser._MAX_TEMPLATES", 10)
    prepared: list[bytes] = []

    def prepare(template: RequestTemplate) -> RequestTemplate:
        prepared.append(template.query)
        return template

    prepared_requests = PreparedRequests(prepare)
    for number in range(100):
        prepared_requests.find(PLAIN)
        prepared_requests.find(PLAIN.replace(b" HTTP", b"?max_age_ms=%d HTTP" % number))
    assert prepared.count(b"") == 1
    remembered = [
        after
        for known in (prepared_requests._known, prepared_requests._known_before)
        for of in known.values()
        for after in of
    ]
    assert len(remembered) <= 20
    prepared_requests.find(PLAIN.replace(b"Host: x", b"Host: x\r\nX: " + b"x" * 2_000))
    assert max(map(len, remembered)) < 1_000


@pytest.mark.parametrize("cut", range(1, len(PLAIN)))
def test_a_request_that_is_not_whole_is_left_alone(cut):
    assert recognise(PLAIN[:cut]) is None


def test_several_requests_are_recognised_one_after_another():
    data = PLAIN * 3
    at = 0
    for _ in range(3):
        found = recognise(data, at)
        assert found is not None
        assert (found.template.store, found.segment, found.template.query) == ("counts", b"a", b"")
        at = found.end
    assert at == len(data)


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 1",
        b"Content-Length: 0\r\nContent-Length: 0",
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Upgrade: websocket",
        b"Upgrade: h2c",
        b"Proxy-Connection: close",
        b"Origin: http://a\r\nOrigin: http://b",
        b"Origin:",
        b"Authorization: Bearer a\r\nAuthorization: Bearer b",
    ]
    + [
        b"Connection: close",
        b"Connection: upgrade, close",
        b"Connection: upgrade",
        b"Connection: ,",
        b"Host: y",
        b"Accept: application/vnd.forebay.frames.v1",
    ],
)
def test_what_needs_the_parser_is_left_to_it(header):
    assert recognise(b"GET /v1/stores/c/keys/a HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n") is None


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 0\r\nUser-Agent: Java-http-client/17",
        b"Accept: application/json, text/plain, */*",
        b"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nUpgrade-Insecure-Requests: 1",
        b"Accept: application/json\r\nAccept: application/*+json",
        b"Proxy-Connection: Keep-Alive",
    ],
    ids=["java", "axios", "browser", "twice", "old-proxy"],
)
def test_what_widely_used_clients_send_is_ordinary(headers):
    sent = PLAIN.replace(b"Host: x", b"Host: x\r\n" + headers)
    get, plain = recognise(sent), recognise(PLAIN)
    assert get is not None
    assert plain is not None
    assert (get.template, get.segment, get.end) == (plain.template, plain.segment, len(sent))
    assert (Parsed(sent).complete, by_h11(sent)[1]) == (1, b"")
    posted = BATCH.replace(b"Host: x", b"Host: x\r\n" + headers.replace(b"Content-Length: 0\r\n", b""))
    batch = recognise_batch(posted)
    assert batch is not None
    assert not batch.frames
    assert batch.body == Parsed(posted).body == by_h11(posted)[1]


def test_the_origin_is_recognised():
    found = recognise(b"GET /v1/stores/c/keys/a HTTP/1.1\r\nHost: x\r\norigin:  https://a.example \r\n\r\n")
    assert found is not None
    assert found.template.origin == b"https://a.example"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"", b""),
        (b"Authorization:\r\n", b""),
        (b"authorization:  Bearer a \r\n", b"Bearer a"),
        (b"AUTHORIZATION: Basic YQ==\r\nOrigin: http://a\r\n", b"Basic YQ=="),
    ],
)
def test_the_authorization_is_recognised(header, value):
    found = recognise(b"GET /v1/stores/c/keys/a HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
    assert found is not None
    assert found.template.authorization == value


def test_a_request_without_a_host_is_left_to_the_parser():
    assert recognise(b"GET /v1/stores/c/keys/a HTTP/1.1\r\nAccept: */*\r\n\r\n") is None


def test_no_header_takes_long_to_judge():
    # The event loop waits meanwhile, for whoever sends it.
    head = b"GET /v1/stores/c/keys/a HTTP/1.1\r\nHost: x\r\nA:"
    began = time.process_time()
    for odd in (b" " * 8000, b" \t" * 4000, b"x" + b" " * 8000, b"x " * 4000, b"%" * 8000):
        assert recognise(head + odd + b"\x01\r\n\r\n") is None
    assert time.process_time() - began < 0.1
