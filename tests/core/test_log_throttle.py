from forebay import logs
from forebay.logs import LogThrottle


def test_what_was_logged_is_news_again_after_a_minute(monkeypatch):
    now_s = 1_000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now_s)
    logged = LogThrottle()
    assert [logged.allow(what) for what in ("full", "full", "gone")] == [True, False, True]
    now_s += 59
    assert not logged.allow("full")
    now_s += 2
    assert [logged.allow("full") for _ in range(2)] == [True, False]


def test_ever_new_texts_take_a_bounded_memory(monkeypatch):
    monkeypatch.setattr(logs, "_MAX_KEPT", 10)
    logged = LogThrottle()
    assert all(logged.allow(f"port {number}") for number in range(100))
    assert len(logged._logged_at_s) <= 10
