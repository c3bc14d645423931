"""Which hosts a port without keys may be opened for."""

import pytest

from core.addresses import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_addresses_of_this_machine_only_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", "", "127.0.0.1.example.com"])
def test_addresses_that_others_reach_are_not(host: str) -> None:
    assert not is_loopback(host)
