"""Which addresses belong to this machine alone: the rule by which a port without keys may be opened."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether ``host``, an address or ``localhost``, can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
