"""Which group a worker joins by the URLs that it is given."""

import pytest

from forebay.errors import SettingError
from forebay.topology_file import parse_topology
from forebay_changelog import open_changelog
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.membership import open_membership

TOPOLOGY = parse_topology(
    {"application_id": "a", "subtopology": [{"name": "s", "partitions": 1, "store": [{"name": "s"}]}]}
)


def opened(directory, url):
    changelog = open_changelog(f"sqlite://{directory}/the%20log")
    return open_membership(url, TOPOLOGY, changelog, AssignmentPolicy(1, 0, 1), GroupTimeouts(6_000, 0, 0))


def test_a_group_is_beside_its_changelog_or_where_its_url_says(tmp_path):
    opened(tmp_path, None)
    assert (tmp_path / "the log" / "group.db").exists()
    opened(tmp_path, f"sqlite://{tmp_path}/another.db")
    assert (tmp_path / "another.db").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nats://host", r"The group 'nats://host' is of no kind .*sqlite://"),
        ("sqlite://relative.db", r"is not of the form sqlite:///FILE"),
    ],
)
def test_a_group_of_another_form_is_refused(tmp_path, url, message):
    with pytest.raises(SettingError, match=message):
        opened(tmp_path, url)
