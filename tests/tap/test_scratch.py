from forebay_tap.scratch import ContentIndex


def test_keys_that_a_state_lacks_are_removed_as_they_are_read():
    """However many there are, and the empty key among them."""
    content = ContentIndex()
    keys = [b"", *(number.to_bytes(2, "big") for number in range(2_500))]
    content.load((key, b"digest") for key in keys)
    content.begin()
    assert not content.changes(keys[7], b"digest")
    assert list(content.unseen()) == [key for key in keys if key != keys[7]]
    found = []
    for key in content.unseen():
        found.append(key)
        content.remove(key)
    assert found == [key for key in keys if key != keys[7]]
    assert list(content.unseen()) == []
    assert not content.is_empty()
