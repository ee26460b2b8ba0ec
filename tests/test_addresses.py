"""What counts as this machine: addresses, and the headers that browsers of this machine send."""

import pytest

from mrtr_server.addresses import is_loopback_address, is_loopback_host, is_loopback_origin


def test_which_addresses_are_of_this_machine_alone() -> None:
    assert all(map(is_loopback_address, ("127.0.0.1", "::1", "localhost", "LOCALHOST", "127.1.2.3")))
    assert not any(map(is_loopback_address, ("0.0.0.0", "::", "192.168.1.2", "example.com", "localhost.evil", "")))


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8000", "127.0.0.1:80", "[::1]:8000"])
def test_hosts_and_origins_of_this_machine(host: str) -> None:
    assert is_loopback_host(host)
    assert is_loopback_origin(f"http://{host.lower()}")


@pytest.mark.parametrize(
    "host", ["", "localhost.evil", "evil.localhost", "127.0.0.1.evil:80", "localhost:80:80", "::1", "user@localhost"]
)
def test_other_hosts_and_origins(host: str) -> None:
    assert not is_loopback_host(host)
    assert not is_loopback_origin(f"http://{host}")
