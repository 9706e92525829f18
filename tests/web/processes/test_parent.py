from forebay_web.processes.parent import pause_before_restart_s


def test_dying_child_is_restarted_with_backoff():
    pauses = [0.0]
    while len(pauses) < 9:
        pauses.append(pause_before_restart_s(1.0, pauses[-1]))
    assert pauses[1:] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pause_before_restart_s(60.0, pauses[-1]) == 0.1
