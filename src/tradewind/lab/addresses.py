"""Addresses of sites, in a private range that exists only inside the lab's namespaces."""

from __future__ import annotations

import ipaddress

INTERFACE = "eth0"
"""Name of every site's network interface."""
_FIRST = int(ipaddress.IPv4Address("10.77.0.0"))
MAX_SITES = 64
"""Largest number of sites of a lab; one machine does not carry more."""


def number_of(site: int) -> int:
    """The IPv4 address of the site in this row of the network, as an integer."""
    return _FIRST + site + 1


def address_of(site: int) -> str:
    """The IPv4 address of the site in this row of the network.

    >>> address_of(0), address_of(8)
    ('10.77.0.1', '10.77.0.9')
    """
    return str(ipaddress.IPv4Address(number_of(site)))


def ethernet_of(site: int) -> str:
    """The Ethernet address of the site in this row of the network, of the range for local use.

    >>> ethernet_of(0)
    '02:00:00:00:00:01'
    """
    return f"02:00:00:00:00:{site + 1:02x}"
