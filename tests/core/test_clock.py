from forebay.clock import boot_ms, epoch_ms, steady_epoch_ms


def test_the_clocks_move_on_in_milliseconds() -> None:
    first = boot_ms()
    assert first <= boot_ms() < first + 60_000
    assert epoch_ms() > 1_700_000_000_000


def test_a_clock_that_is_set_ends_no_delay(monkeypatch):
    before = steady_epoch_ms()
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert before <= steady_epoch_ms() < before + 60_000
