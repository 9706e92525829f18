from forebay.clock import boot_ms, epoch_ms


def test_the_clocks_move_on_in_milliseconds() -> None:
    first = boot_ms()
    assert first <= boot_ms() < first + 60_000
    assert epoch_ms() > 1_700_000_000_000
