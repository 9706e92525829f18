from forebay.bounded_cache import of_one_store, remembered


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


def test_what_a_key_needs_is_worked_out_once_unless_it_is_long():
    worked_out: list[bytes] = []

    def work_out(segment: bytes) -> int:
        worked_out.append(segment)
        return len(segment)

    lengths = of_one_store(work_out, 1)
    for segment in (b"a", b"b", b"x" * 1_000) * 3:
        assert lengths(segment) == len(segment)
    assert worked_out == [b"a", b"b", *[b"x" * 1_000] * 3]


def test_the_more_stores_the_fewer_keys_of_each_are_remembered():
    worked_out: list[bytes] = []
    of_one_of_many = of_one_store(worked_out.append, 1_000)
    for number in [*range(100), *range(100)]:
        of_one_of_many(b"%d" % number)
    assert len(worked_out) == 200
    of_one_of_many(b"99")
    assert len(worked_out) == 200
