import contextlib
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.errors import BadParameter
from forebay.lag import UNLIMITED, Tolerance
from forebay.position import Position, encode_position, log_digest
from forebay.store_spec import StoreSpec
from forebay.wire.parameters import (
    DEFAULT_LIMIT,
    KEY_PARAMETERS,
    MAX_LIMIT,
    PARAMETERS,
    SCAN_PARAMETERS,
    ReadParameters,
    openapi_parameters,
    parse_parameters,
    parse_time,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=150)

POSITION = Position(log_digest("log"), {3: 42})
TOKEN = encode_position(POSITION)
EVERY_PARAMETER = frozenset(PARAMETERS)


def parse(query: str | bytes) -> ReadParameters:
    return parse_parameters(query.encode() if isinstance(query, str) else query, EVERY_PARAMETER)


def refused(query: str | bytes) -> BadParameter:
    with pytest.raises(BadParameter) as caught:
        parse(query)
    return caught.value


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("", ReadParameters()),
        ("&&", ReadParameters()),
        ("max_record_lag=0", ReadParameters(Tolerance(max_record_lag=0))),
        ("max_time_lag_ms=5", ReadParameters(Tolerance(max_time_lag_ms=5))),
        ("max_age_ms=60000", ReadParameters(Tolerance(max_age_ms=60000))),
        ("max_age_ms=3&max_record_lag=1&max_time_lag_ms=2", ReadParameters(Tolerance(1, 2, 3))),
        ("require_active=true", ReadParameters(require_active=True)),
        ("require_active=false", ReadParameters(require_active=False)),
        ("prefer=any", ReadParameters(prefer="any")),
        ("prefer=active", ReadParameters()),
        (f"min_position={TOKEN}", ReadParameters(min_position=POSITION)),
        ("wait_ms=0", ReadParameters(wait_ms=0)),
        ("wait_ms=250", ReadParameters(wait_ms=250)),
        ("timeout_ms=1", ReadParameters(timeout_ms=1)),
        ("as_of=-1", ReadParameters(as_of_ms=-1)),
        ("as_of=2013-01-01T00:00:00Z", ReadParameters(as_of_ms=1356998400000)),
        ("from=100&to=200", ReadParameters(start=b"100", end=b"200")),
        ("from=a%2Fb%25&to=%FF%00&prefix=", ReadParameters(start=b"a/b%", end=b"\xff\x00", prefix=b"")),
        ("partition=0", ReadParameters(partition=0)),
        ("allow_partial=true", ReadParameters(allow_partial=True)),
        ("reverse=true", ReadParameters(reverse=True)),
        ("limit=1", ReadParameters(limit=1)),
        (f"limit={MAX_LIMIT}", ReadParameters(limit=MAX_LIMIT)),
        ("cursor=a%2Fb", ReadParameters(cursor="a/b")),
        ("max%5Frecord%5Flag=%37", ReadParameters(Tolerance(max_record_lag=7))),
    ],
)
def test_a_parameter_is_read(query: str, read: ReadParameters) -> None:
    assert parse(query) == read


def test_what_a_request_leaves_out_has_its_default() -> None:
    read = parse("")
    assert read.tolerance == UNLIMITED
    assert read.limit == DEFAULT_LIMIT == 1000
    assert read.timeout_ms is None


@pytest.mark.parametrize(
    "name", ["max_record_lag", "max_time_lag_ms", "max_age_ms", "wait_ms", "timeout_ms", "limit", "partition"]
)
@pytest.mark.parametrize("text", ["", "-1", "%2B1", "+1", "1.5", "1e3", "ten", "0x1", "1_000", "²", "٣", "9" * 19])
def test_a_number_that_is_none_or_negative_is_refused_by_name(name: str, text: str) -> None:
    problem = refused(f"{name}={text}")
    assert problem.members == {"parameter": name}
    assert name in problem.detail


@pytest.mark.parametrize("query", ["timeout_ms=0", "limit=0", f"limit={MAX_LIMIT + 1}"])
def test_a_number_out_of_range_is_refused_by_name(query: str) -> None:
    name = query.partition("=")[0]
    problem = refused(query)
    assert problem.members == {"parameter": name}
    assert name in problem.detail


@pytest.mark.parametrize("name", ["require_active", "reverse", "allow_partial"])
@pytest.mark.parametrize("text", ["", "1", "True", "yes", "true%20"])
def test_a_boolean_that_is_none_is_refused_by_name(name: str, text: str) -> None:
    assert refused(f"{name}={text}").members == {"parameter": name}


@pytest.mark.parametrize("token", ["", "x", "%FF", TOKEN[:-2]])
def test_a_position_that_is_none_is_refused_by_name(token: str) -> None:
    assert refused(f"min_position={token}").members == {"parameter": "min_position"}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("max_lag=5", "max_lag"),
        ("Max_record_lag=5", "Max_record_lag"),
        ("max_record_lag=5&tolerance", "tolerance"),
        ("from_ms=5", "from_ms"),
        ("=5", ""),
        ("%FF=5", "\ufffd"),
    ],
)
def test_a_misspelt_parameter_is_refused_rather_than_ignored(query: str, name: str) -> None:
    problem = refused(query)
    assert problem.members == {"parameter": name}
    assert "max_record_lag" in problem.detail


def test_more_parameters_than_any_route_takes_are_refused_unread() -> None:
    with pytest.raises(BadParameter, match="more than 64 parameters"):
        parse_parameters(b"a&" * 32_000, frozenset())


def test_a_parameter_of_another_route_is_refused() -> None:
    with pytest.raises(BadParameter, match="'limit'") as caught:
        parse_parameters(b"limit=5", KEY_PARAMETERS)
    assert caught.value.members == {"parameter": "limit"}


@pytest.mark.parametrize("name", sorted(EVERY_PARAMETER))
def test_a_parameter_given_twice_is_refused_by_name(name: str) -> None:
    problem = refused(f"{name}=1&{name}=1")
    assert problem.members == {"parameter": name}
    assert "twice" in problem.detail


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("0", 0),
        ("1356998400000", 1356998400000),
        ("-86400000", -86400000),
        ("1970-01-01T00:00:00Z", 0),
        ("2013-01-01T00:00:00Z", 1356998400000),
        ("2013-01-01T00:00:00%2B00:00", 1356998400000),
        ("2013-01-01T02:00:00%2B02:00", 1356998400000),
        ("2012-12-31T19:00:00-05:00", 1356998400000),
        ("2013-01-01T05:30:00.123%2B05:30", 1356998400123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_a_time_is_epoch_milliseconds_or_rfc_3339(text: str, moment_ms: int) -> None:
    assert parse(f"as_of={text}").as_of_ms == moment_ms
    assert parse_time("from", unquote_to_bytes(text)) == moment_ms


@pytest.mark.parametrize("text", ["1000000000", "1795618060", "9999999999"])
def test_epoch_seconds_are_refused_with_the_milliseconds_that_they_are(text: str) -> None:
    problem = refused(f"as_of={text}")
    assert problem.members == {"parameter": "as_of"}
    assert f"give {text}000" in problem.detail
    with pytest.raises(BadParameter, match=f"from={text} would be in 1970"):
        parse_time("from", text.encode())
    # Who means 1970 can say so.
    moment = datetime.fromtimestamp(int(text) / 1000, UTC)
    assert parse(f"as_of={quote(moment.isoformat())}").as_of_ms == int(text)


@repeatable
@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)),
    st.integers(-23 * 60, 23 * 60),
)
@example(datetime(2016, 2, 29, 23, 59, 59, 999_999), -330)
def test_sub_millisecond_times_select_the_same_versions(wall: datetime, offset_minutes: int) -> None:
    """`as_of` rounds down, and `from` and `to` round up."""
    moment = wall.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse(f"as_of={quote(moment.isoformat())}").as_of_ms == since // timedelta(milliseconds=1)
    for bound in ("from", "to"):
        assert parse_time(bound, moment.isoformat().encode()) == -(-since // timedelta(milliseconds=1))


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2013-13-01T00:00:00Z", "2013-02-30T00:00:00Z", "--5", "1.5", "-", "2013-01-01T25:00Z"],
)
def test_a_time_that_is_none_is_refused_by_name(text: str) -> None:
    problem = refused(f"as_of={text}")
    assert problem.members == {"parameter": "as_of"}
    assert "as_of=" in problem.detail
    with pytest.raises(BadParameter) as caught:
        parse_time("from", text.encode())
    assert caught.value.members == {"parameter": "from"}


@pytest.mark.parametrize("text", ["2013-01-01T00:00:00", "2013-01-01", "2013-01-01T00:00:00.5"])
def test_a_time_without_a_zone_is_refused_with_the_remedy(text: str) -> None:
    problem = refused(f"as_of={text}")
    assert problem.members == {"parameter": "as_of"}
    assert "time zone" in problem.detail


@repeatable
@given(st.text(st.characters(codec="ascii"), max_size=30) | st.sampled_from(sorted(EVERY_PARAMETER)).flatmap(
    lambda name: st.text("0123456789-+=&%ftruea", max_size=10).map(lambda text: f"{name}={text}")))  # fmt: skip
def test_any_query_string_is_read_or_refused(query: str) -> None:
    with contextlib.suppress(BadParameter):
        assert parse(query).limit <= MAX_LIMIT


def store(**tolerance: int) -> StoreSpec:
    return StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1, **tolerance)  # type: ignore[arg-type]


def test_a_request_without_bounds_gets_the_stores() -> None:
    assert parse("").tolerance_for(store()) == UNLIMITED
    assert parse("").tolerance_for(store(max_age_ms=5)) == Tolerance(None, None, 5)


def test_a_request_with_any_bound_replaces_all_of_the_stores() -> None:
    own = parse("max_record_lag=9").tolerance_for(store(max_record_lag=1, max_age_ms=5))
    assert own == Tolerance(9, None, None)


def test_every_parameter_of_a_route_is_documented() -> None:
    assert PARAMETERS.keys() >= KEY_PARAMETERS | SCAN_PARAMETERS
    listed = openapi_parameters(KEY_PARAMETERS)
    assert {item["name"] for item in listed} == KEY_PARAMETERS
    assert all(item["in"] == "query" and not item["required"] and item["description"] for item in listed)


def test_timeout_is_as_requested_up_to_the_ceiling():
    def allowed_ms(query: bytes) -> int:
        return parse_parameters(query, KEY_PARAMETERS).allowed_ms(1_000)

    assert allowed_ms(b"") == 1_000
    assert allowed_ms(b"timeout_ms=50") == 50
    assert allowed_ms(b"wait_ms=5000") == 6_000
    assert allowed_ms(b"wait_ms=5000&timeout_ms=2000") == 2_000
    assert allowed_ms(b"timeout_ms=40000") == allowed_ms(b"wait_ms=40000") == 30_000


@pytest.mark.parametrize("name", ["from", "to", "prefix"])
def test_a_bound_longer_than_a_key_may_be_is_refused(name):
    """As it is written there, with its name."""
    longest = "%61" * 1_300 + "a" * (4_096 - 3_900 - len(f"{name}="))
    parse(f"{name}={longest}")
    assert refused(f"{name}={longest}a").detail == f"{name}= is longer than 4096 bytes."
