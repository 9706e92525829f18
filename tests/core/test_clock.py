import time

from forebay.clock import boot_ms, epoch_ms, latest_epoch_ms


def test_the_clocks_move_on_in_milliseconds() -> None:
    first = boot_ms()
    assert first <= boot_ms() < first + 60_000
    assert epoch_ms() > 1_700_000_000_000


def test_a_thread_that_waits_between_two_clocks_does_not_put_one_ahead(monkeypatch):
    """Values would expire early by as long, for as long as the process lives."""
    wall, boot, waited_s = time.time, time.clock_gettime, 30.0

    def after_a_wait(clock: int) -> float:
        monkeypatch.setattr("time.time", lambda: wall() + waited_s)
        monkeypatch.setattr("time.clock_gettime", lambda clock: boot(clock) + waited_s)
        return boot(clock)

    before = latest_epoch_ms() - wall() * 1000
    monkeypatch.setattr("time.clock_gettime", after_a_wait)
    latest_epoch_ms()
    ahead = latest_epoch_ms() - (wall() + waited_s) * 1000
    assert ahead < before + 10_000
