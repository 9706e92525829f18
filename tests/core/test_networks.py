import pytest

from forebay.errors import SettingError
from forebay.networks import Networks
from forebay.setting_sources import load_settings


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("fe80::1%eth0", True),
        ("11.0.0.1", False),
        ("::ffff:11.0.0.1", False),
        ("fec0::1", False),
        ("some.name", False),
        ("", False),
    ],
)
def test_an_address_is_in_the_networks_listed(address, inside):
    assert (address in Networks("n", ["10.0.0.0/8", "fe80::/10"])) is inside


def test_names_are_compared_as_dns_does():
    networks = Networks("n", ["Worker-1.example."], names=True)
    assert networks.names("worker-1.EXAMPLE")
    assert not networks.names("worker-2.example")


@pytest.mark.parametrize(
    ("item", "names"),
    [("a.name", False), ("10.0.0.1/8", True), ("10.0.0.256", True), ("a name", True), ("-a", True)],
)
def test_invalid_network_is_refused_with_its_setting(item, names):
    with pytest.raises(SettingError, match=f"setting_x: .*{item}"):
        Networks("setting_x", [item], names=names)


@pytest.mark.parametrize(
    ("address", "private"),
    [("127.0.0.1", True), ("::1", True), ("172.31.0.1", True), ("172.32.0.1", False), ("100.64.0.1", False)],
)
def test_token_goes_to_private_networks_by_default(address, private):
    """Loopback addresses count as private."""
    values = load_settings("router", {"seeds": "a:1"}, {})
    assert (address in Networks("n", values["worker_token_networks"], names=True)) is private
