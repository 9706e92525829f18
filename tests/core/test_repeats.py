from forebay import repeats
from forebay.repeats import Repeats


def test_what_was_logged_is_news_again_after_a_minute(monkeypatch):
    now_s = 1_000.0
    monkeypatch.setattr(repeats.time, "monotonic", lambda: now_s)
    logged = Repeats()
    assert [logged.is_news(what) for what in ("full", "full", "gone")] == [True, False, True]
    now_s += 59
    assert not logged.is_news("full")
    now_s += 2
    assert [logged.is_news("full") for _ in range(2)] == [True, False]


def test_ever_new_texts_take_a_bounded_memory(monkeypatch):
    monkeypatch.setattr(repeats, "_MOST_KEPT", 10)
    logged = Repeats()
    assert all(logged.is_news(f"port {number}") for number in range(100))
    assert len(logged._logged_at_s) <= 10
