"""Which networks each backend emulates faithfully; others are refused, never silently approximated."""

from __future__ import annotations

import os

import numpy as np

from tradewind.errors import BadOption, CannotEmulate
from tradewind.lab.addresses import MAX_SITES
from tradewind.network import Network
from tradewind.units import format_rate

BACKENDS = ("htb", "delay", "inproc")
"""All backends, in the order in which `auto` tries them."""
CARRIED_PER_CORE_BPS = {"htb": 4e9, "delay": 2e9, "inproc": 0.5e9}
"""Rate that one core is assumed to carry over all links at once, including the programs that send; measured on two
cores. The calibration then checks it."""
LOSSY_PER_CORE_BPS = 0.5e9
"""The same for `delay` with loss: without segmentation offload, packets pass through user space one by one."""
_LEAST_LINK_BPS = 64e3
"""Lowest rate of a link: below it a single packet takes a large part of a second."""


def obstacle(backend: str, network: Network) -> str | None:
    """Why a backend cannot emulate a network on any machine; None if it can."""
    if len(network) > MAX_SITES:
        return f"{network.name!r} has {len(network)} sites, but a lab can have at most {MAX_SITES}"
    if not network.link_count:
        return f"{network.name!r} has no links"
    slowest_bps = float(network.bandwidth_bps[network.bandwidth_bps > 0].min())
    if slowest_bps < _LEAST_LINK_BPS:
        return f"{network.name!r} has a link of {format_rate(slowest_bps)}, slower than {format_rate(_LEAST_LINK_BPS)}"
    lacks = []
    if backend == "htb":
        lacks += ["latency"] if network.latency_s.any() else []
        lacks += ["NIC caps or trunks"] if network.has_shared_capacity else []
    if backend != "inproc" and any(site.machines for site in network.sites):
        lacks.append("machines within a site")
    if backend in ("htb", "inproc") and network.loss.any():
        lacks.append("loss")
    return f"{backend} has no {' and no '.join(lacks)}, but {network.name!r} has" if lacks else None


def carried_bps(network: Network) -> float:
    """The highest total rate at which all sites can send at once, in bit/s."""
    rows = np.minimum(network.bandwidth_bps.sum(axis=1), network.egress_bps)
    columns = np.minimum(network.bandwidth_bps.sum(axis=0), network.ingress_bps)
    return float(min(rows.sum(), columns.sum()))


def most_bps(backend: str, network: Network) -> float:
    """The total rate that this machine is assumed to carry with a backend, in bit/s."""
    lossy = backend == "delay" and network.loss.any()
    return (LOSSY_PER_CORE_BPS if lossy else CARRIED_PER_CORE_BPS[backend]) * (os.cpu_count() or 1)


def fit(backend: str, network: Network, scale: float | str | None) -> tuple[Network, float]:
    """The network scaled by `scale` (None: 1), and the factor; raises `CannotEmulate` if it exceeds the machine.

    `auto` takes the largest factor, at most 1, that fits.
    """
    too_much = carried_bps(network) / most_bps(backend, network)
    if scale == "auto":
        factor = min(1.0, 0.999 / too_much)
    elif scale is None:
        factor = 1.0
    elif isinstance(scale, str):
        raise BadOption(f"scale must be a number or auto, got {scale!r}.")
    else:
        factor = float(scale)
    if factor * too_much > 1:
        smaller = _round_down(0.999 / too_much)
        raise CannotEmulate(
            f"{network.name!r} carries up to {format_rate(carried_bps(network) * factor)} at once; {backend} on this "
            f"machine carries about {format_rate(most_bps(backend, network))}. Use --scale {smaller} or --scale auto "
            "to emulate all rates scaled down."
        )
    return (network if factor == 1.0 else network.scaled(factor)), factor


def _round_down(value: float) -> str:
    """The value rounded down to two significant digits.

    >>> _round_down(0.0349), _round_down(0.666)
    ('0.034', '0.66')
    """
    digits = 1 - int(np.floor(np.log10(value)))
    return f"{np.floor(value * 10**digits) / 10**digits:g}"
