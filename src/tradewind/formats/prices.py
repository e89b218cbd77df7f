"""Reader of prices of egress in CSV: `src,dst,usd_per_gb`, one row for many links.

`src` and `dst` are names of sites, with `*` and `?` as in file names, or `provider=NAME` or `zone=NAME`; `dst` may also
be `same provider` or `same zone`, that of the source. A later row replaces an earlier one for the links of both, so a
file begins with what is general.
"""

from __future__ import annotations

import csv
import io
import math
from fnmatch import fnmatchcase

import numpy as np

from tradewind.errors import BadNetwork, BadQuantity
from tradewind.formats.text import decode, to_number
from tradewind.network import Network, Site

COLUMNS = ["src", "dst", "usd_per_gb"]


def with_prices_from_csv(network: Network, data: bytes | str, source: str = "prices CSV") -> Network:
    """The network with the prices of a file; links that no row names keep theirs. Raises `BadNetwork`.

    >>> pair = Network("pair", [Site("a", provider="x"), Site("b", provider="y")], [[0, 1e6], [1e6, 0]])
    >>> with_prices_from_csv(pair, "src,dst,usd_per_gb\\n*,*,0.09\\nprovider=y,a,0.05").usd_per_gb.tolist()
    [[0.0, 0.09], [0.05, 0.0]]
    """
    rows = [row for row in csv.reader(io.StringIO(decode(data, source))) if any(cell.strip() for cell in row)]
    if not rows or [cell.strip().lower() for cell in rows[0]] != COLUMNS:
        raise BadNetwork(f"{source}: line 1 must be {','.join(COLUMNS)}.")
    price = network.usd_per_gb.copy()
    for number, row in enumerate(rows[1:], 2):
        where = f"{source}: row {number}"
        if len(row) != len(COLUMNS):
            raise BadNetwork(f"{where} has {len(row)} cells, expected {len(COLUMNS)}.")
        src, dst, text = (cell.strip() for cell in row)
        try:
            usd_per_gb = to_number(text)
        except BadQuantity as error:
            raise BadNetwork(f"{where}: {error}") from error
        if not 0 <= usd_per_gb < math.inf:
            raise BadNetwork(f"{where}: a price must be at least 0, got {text}.")
        chosen = np.array(
            [[_is_meant(src, a, a) and _is_meant(dst, b, a) for b in network.sites] for a in network.sites]
        )
        if not (chosen & (network.bandwidth_bps > 0)).any():
            raise BadNetwork(
                f"{where}: {src!r} to {dst!r} names no link of {network.name!r}. Correct or remove the row."
            )
        price[chosen] = usd_per_gb
    return network.with_prices(price)


def _is_meant(text: str, site: Site, source: Site) -> bool:
    kind, equals, value = text.partition("=")
    if text in ("same provider", "same zone"):
        kind = text.removeprefix("same ")
        value, equals = getattr(source, kind) or "", "="
    if equals and kind in ("provider", "zone"):
        return bool(value) and getattr(site, kind) == value
    return fnmatchcase(site.name, text)
