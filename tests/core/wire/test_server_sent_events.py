from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.wire.server_sent_events import COMMENT, Event, EventReader

lines = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(str.encode)
events = st.builds(
    Event,
    st.sampled_from(["value", "lag"]),
    st.lists(lines, min_size=1).map(b"\n".join),
    st.none() | st.just("") | st.text("abc_-9", min_size=1),
)


@settings(derandomize=True, deadline=None)
@given(st.lists(events), st.integers(1, 7))
def test_what_was_encoded_is_read_back_however_it_is_cut(sent, size):
    raw = b"retry: 1\n\n" + b"".join(COMMENT + event.encode() for event in sent)
    reader = EventReader()
    assert [event for at in range(0, len(raw), size) for event in reader.feed(raw[at : at + size])] == sent


def test_other_line_ends_of_a_value_do_not_end_its_event():
    (event,) = EventReader().feed(Event("value", b"1\r\n2\r3").encode())
    assert event.data == b"1\n2\n3"


def test_event_lines_may_end_with_crlf():
    """An event without data is dropped."""
    reader = EventReader()
    assert reader.feed(b"event: a\r\n\r\nevent: value\r\ndata:1\r\n\r\n") == [Event("value", b"1")]
