"""Addresses of sites, in a private range that exists only inside the lab's namespaces."""

from __future__ import annotations

import ipaddress

INTERFACE = "eth0"
"""Of every site."""
_FIRST = int(ipaddress.IPv4Address("10.77.0.0"))
MAX_SITES = 64
"""More do not fit on one machine anyway."""


def number_of(site: int) -> int:
    """The address of the site with this row, as a number."""
    return _FIRST + site + 1


def address_of(site: int) -> str:
    """The address of the site with this row.

    >>> address_of(0), address_of(8)
    ('10.77.0.1', '10.77.0.9')
    """
    return str(ipaddress.IPv4Address(number_of(site)))
