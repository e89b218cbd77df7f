"""What each backend can imitate faithfully. What it cannot is refused, never approximated in silence."""

from __future__ import annotations

import os

import numpy as np

from tradewind.errors import BadOption, CannotEmulate
from tradewind.lab.addresses import MAX_SITES
from tradewind.network import Network
from tradewind.units import format_rate

BACKENDS = ("htb", "delay", "inproc")
"""In the order in which they are tried."""
CARRIED_PER_CORE_BPS = {"htb": 4e9, "delay": 2e9, "inproc": 0.5e9}
"""What a core is trusted to carry over all links at once, with the programs that send it; measured on two cores. The
calibration has the last word."""
LOSSY_PER_CORE_BPS = 0.5e9
"""For `delay` on links that lose packets: without segmentation offload every packet goes through user space alone."""
_LEAST_LINK_BPS = 64e3
"""Below it a single packet takes a large part of a second."""


def obstacle(backend: str, network: Network) -> str | None:
    """Why a backend cannot imitate a network, whatever the machine; None if it can."""
    if len(network) > MAX_SITES:
        return f"{network.name!r} has {len(network)} sites, and one machine is trusted with {MAX_SITES}"
    if not network.link_count:
        return f"{network.name!r} has no links"
    slowest_bps = float(network.bandwidth_bps[network.bandwidth_bps > 0].min())
    if slowest_bps < _LEAST_LINK_BPS:
        return f"{network.name!r} has a link of {format_rate(slowest_bps)}, slower than {format_rate(_LEAST_LINK_BPS)}"
    lacks = []
    if backend == "htb":
        lacks += ["latency"] if network.latency_s.any() else []
        lacks += ["NIC caps or trunks"] if network.has_shared_capacity else []
    if backend in ("htb", "inproc") and network.loss.any():
        lacks.append("loss")
    return f"{backend} has no {' and no '.join(lacks)}, but {network.name!r} has" if lacks else None


def carried_bps(network: Network) -> float:
    """The most that all sites can send at once."""
    rows = np.minimum(network.bandwidth_bps.sum(axis=1), network.egress_bps)
    columns = np.minimum(network.bandwidth_bps.sum(axis=0), network.ingress_bps)
    return float(min(rows.sum(), columns.sum()))


def most_bps(backend: str, network: Network) -> float:
    """What this machine is trusted to carry."""
    lossy = backend == "delay" and network.loss.any()
    return (LOSSY_PER_CORE_BPS if lossy else CARRIED_PER_CORE_BPS[backend]) * (os.cpu_count() or 1)


def fit(backend: str, network: Network, scale: float | str | None) -> tuple[Network, float]:
    """The network at the scale asked for, or as it is; raises `CannotEmulate` if it is too much for the machine.

    `auto` takes the largest scale, at most 1, that fits.
    """
    too_much = carried_bps(network) / most_bps(backend, network)
    if scale == "auto":
        factor = min(1.0, 0.999 / too_much)
    elif scale is None:
        factor = 1.0
    elif isinstance(scale, str):
        raise BadOption(f"a scale of {scale!r} makes no sense: give a number, or auto.")
    else:
        factor = float(scale)
    if factor * too_much > 1:
        smaller = _round_down(0.999 / too_much)
        raise CannotEmulate(
            f"{network.name!r} carries up to {format_rate(carried_bps(network) * factor)} at once; {backend} on this "
            f"machine is trusted with {format_rate(most_bps(backend, network))}. Use --scale {smaller} "
            "or --scale auto for a faithful miniature."
        )
    return (network if factor == 1.0 else network.scaled(factor)), factor


def _round_down(value: float) -> str:
    """Two digits, never more than the value.

    >>> _round_down(0.0349), _round_down(0.666)
    ('0.034', '0.66')
    """
    digits = 1 - int(np.floor(np.log10(value)))
    return f"{np.floor(value * 10**digits) / 10**digits:g}"
