"""Reader of a list of links in CSV: one row per directed link, with columns named in the header.

The format of a table of measurements: `src,dst,mbps,ms`. Columns may be in any order, and may have the names that graph
files use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tradewind.errors import BadNetwork, BadQuantity
from tradewind.formats.graph import BANDWIDTH_UNITS, LATENCY_NAMES
from tradewind.formats.text import to_bandwidth_bps, to_latency_ms, to_number
from tradewind.network import MAX_SITES, Link, Network, Site

Row = tuple[int, list[str]]
"""A line number of the file, and the line's cells."""

_BANDWIDTHS = {"bps": "bps", "mbps": "Mbps", "gbps": "Gbps", **BANDWIDTH_UNITS}
COLUMNS: dict[str, Sequence[str]] = {
    "source": ("src", "source", "from"),
    "destination": ("dst", "dest", "destination", "target", "to"),
    "bandwidth": tuple(_BANDWIDTHS),
    "latency": ("ms", *LATENCY_NAMES),
    "loss": ("loss",),
    "price": ("usd_per_gb", "price"),
}
"""Accepted names of each column, in lower case. The price is that of egress, in USD per GB."""


def is_edge_list(header: Sequence[str]) -> bool:
    """Whether a header has columns for a source, a destination and a bandwidth, unlike a matrix of sites.

    >>> is_edge_list(["Src", "Dst", "Mbps", "ms"]), is_edge_list(["to", "fra", "sin"])
    (True, False)
    """
    names = {cell.lower() for cell in header}
    return all(names.intersection(COLUMNS[what]) for what in ("source", "destination", "bandwidth"))


def network_from_edges(rows: Sequence[Row], source: str, name: str) -> Network:
    """The network of a list of links, whose first row is the header; sites are in the order of their first row.

    Raises `BadNetwork` with the line that is wrong.
    """
    place = _columns(rows[0], source)
    unit = _BANDWIDTHS[rows[0][1][place["bandwidth"]].lower()]
    found: dict[tuple[str, str], tuple[int, Link]] = {}
    for number, cells in rows[1:]:
        where = f"{source}: line {number}"
        if len(cells) != len(rows[0][1]):
            raise BadNetwork(f"{where} has {len(cells)} cells, expected {len(rows[0][1])} as in the header.")
        link = _link({what: cells[column] for what, column in place.items()}, unit, where)
        ends = (link.src, link.dst)
        if ends in found:
            raise BadNetwork(
                f"{where}: link {link.src}->{link.dst} is already in line {found[ends][0]}. Links are directed: write "
                "one row for each direction."
            )
        found[ends] = number, link
    names = dict.fromkeys(end for ends in found for end in ends)
    if len(names) > MAX_SITES:
        raise BadNetwork(f"{source}: has {len(names)} sites, expected at most {MAX_SITES}.")
    try:
        return Network.from_links(name, map(Site, names), (link for _, link in found.values()))
    except BadNetwork as error:
        raise BadNetwork(f"{source}: {error}") from error


def _columns(header: Row, source: str) -> dict[str, int]:
    """The column number of each quantity."""
    place: dict[str, int] = {}
    for column, cell in enumerate(header[1]):
        what = next((what for what, names in COLUMNS.items() if cell.lower() in names), None)
        if what is None:
            known = ", ".join(name for names in COLUMNS.values() for name in names)
            raise BadNetwork(
                f"{source}: line {header[0]}: column {cell!r} is unknown. Known: {known}. Latencies are one way: write "
                "half of a round-trip time."
            )
        if what in place:
            first = header[1][place[what]]
            raise BadNetwork(f"{source}: line {header[0]}: columns {first!r} and {cell!r} both give the {what}.")
        place[what] = column
    return place


def _link(cells: dict[str, str], unit: str, where: str) -> Link:
    src, dst = cells["source"], cells["destination"]
    if not src or not dst:
        raise BadNetwork(f"{where}: the {'destination' if src else 'source'} is empty. Give the name of a site.")
    if src == dst:
        raise BadNetwork(f"{where}: source and destination are both {src!r}, expected two sites. Remove the row.")
    convert: dict[str, Callable[[str], float]] = {
        "bandwidth": partial(to_bandwidth_bps, plain_unit=unit),
        "latency": to_latency_ms,
        "loss": partial(_to_limited, limit=1.0),
        "price": partial(_to_limited, limit=math.inf),
    }
    numbers: dict[str, float] = {}
    for what in (what for what in convert if what in cells):
        try:
            numbers[what] = convert[what](cells[what])
        except BadQuantity as error:
            raise BadNetwork(f"{where}: {what} of {src}->{dst}: {error}") from error
    if not 0 < numbers["bandwidth"] < math.inf:
        raise BadNetwork(
            f"{where}: bandwidth of {src}->{dst} must be finite and above 0, got {cells['bandwidth']!r}. Remove the "
            "row if there is no link."
        )
    rest = numbers.get("latency", 0.0) / 1e3, numbers.get("loss", 0.0), numbers.get("price", 0.0)
    return Link(src, dst, numbers["bandwidth"], *rest)


def _to_limited(text: str, limit: float) -> float:
    value = to_number(text)
    if not 0 <= value < limit:
        raise BadQuantity(f"{text!r} must be at least 0{f' and below {limit:g}' if limit < math.inf else ''}.")
    return value
