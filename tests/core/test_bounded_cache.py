from forebay.bounded_cache import remembered


def test_only_short_arguments_are_remembered_and_only_the_last_of_them():
    """Anybody can send thousands of long ones."""
    worked_out: list[bytes] = []

    def upper(argument: bytes) -> bytes:
        worked_out.append(argument)
        return argument.upper()

    function = remembered(upper, most=2, max_bytes=3)
    for argument in (b"a", b"a", b"long", b"long", b"b", b"a", b"c", b"b"):
        assert function(argument) == argument.upper()
    assert worked_out == [b"a", b"long", b"long", b"b", b"c", b"b"]
