"""Links as a CSV file: a row for each directed link, with columns that the header names.

What a table of measurements looks like: `src,dst,mbps,ms`. Columns may come in any order, and the names that graph
files use are understood as well.
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
"""A line's number in the file, and its cells."""

_BANDWIDTHS = {"bps": "bps", "mbps": "Mbps", "gbps": "Gbps", **BANDWIDTH_UNITS}
COLUMNS: dict[str, Sequence[str]] = {
    "source": ("src", "source", "from"),
    "destination": ("dst", "dest", "destination", "target", "to"),
    "bandwidth": tuple(_BANDWIDTHS),
    "latency": ("ms", *LATENCY_NAMES),
    "loss": ("loss",),
    "price": ("price",),
}
"""What a column may hold, and how it may be called; the price is checked and not used: a Network has none."""


def is_edge_list(header: Sequence[str]) -> bool:
    """Whether a header names a source, a destination and a bandwidth, as no matrix of sites does.

    >>> is_edge_list(["Src", "Dst", "Mbps", "ms"]), is_edge_list(["to", "fra", "sin"])
    (True, False)
    """
    names = {cell.lower() for cell in header}
    return all(names.intersection(COLUMNS[what]) for what in ("source", "destination", "bandwidth"))


def network_from_edges(rows: Sequence[Row], source: str, name: str) -> Network:
    """The network that the rows of an edge list describe, its sites in the order in which they are named."""
    place = _columns(rows[0], source)
    unit = _BANDWIDTHS[rows[0][1][place["bandwidth"]].lower()]
    found: dict[tuple[str, str], tuple[int, Link]] = {}
    for number, cells in rows[1:]:
        where = f"{source}: line {number}"
        if len(cells) != len(rows[0][1]):
            raise BadNetwork(f"{where} has {len(cells)} cells, but the header has {len(rows[0][1])} columns.")
        link = _link({what: cells[column] for what, column in place.items()}, unit, where)
        ends = (link.src, link.dst)
        if ends in found:
            raise BadNetwork(
                f"{where}: link {link.src}->{link.dst} was given in line {found[ends][0]} already. Links are directed: "
                "write one row for each way."
            )
        found[ends] = number, link
    names = dict.fromkeys(end for ends in found for end in ends)
    if len(names) > MAX_SITES:
        raise BadNetwork(f"{source}: names {len(names)} sites; Tradewind handles up to {MAX_SITES}.")
    try:
        return Network.from_links(name, map(Site, names), (link for _, link in found.values()))
    except BadNetwork as error:
        raise BadNetwork(f"{source}: {error}") from error


def _columns(header: Row, source: str) -> dict[str, int]:
    """Which column holds what."""
    place: dict[str, int] = {}
    for column, cell in enumerate(header[1]):
        what = next((what for what, names in COLUMNS.items() if cell.lower() in names), None)
        if what is None:
            known = ", ".join(name for names in COLUMNS.values() for name in names)
            raise BadNetwork(
                f"{source}: line {header[0]}: column {cell!r} is unknown. Known: {known}. Latencies are one way: of a "
                "round-trip time give half."
            )
        if what in place:
            first = header[1][place[what]]
            raise BadNetwork(f"{source}: line {header[0]}: columns {first!r} and {cell!r} both give the {what}.")
        place[what] = column
    return place


def _link(cells: dict[str, str], unit: str, where: str) -> Link:
    src, dst = cells["source"], cells["destination"]
    if not src or not dst:
        raise BadNetwork(f"{where}: names no {'destination' if src else 'source'}.")
    if src == dst:
        raise BadNetwork(f"{where}: a site has no link to itself, but {src!r} does here. Leave the row out.")
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
        raise BadNetwork(f"{where}: bandwidth of {src}->{dst} is {cells['bandwidth']!r}. Leave out a link without one.")
    return Link(src, dst, numbers["bandwidth"], numbers.get("latency", 0.0) / 1e3, numbers.get("loss", 0.0))


def _to_limited(text: str, limit: float) -> float:
    value = to_number(text)
    if not 0 <= value < limit:
        raise BadQuantity(f"{text!r} must be at least 0{f' and below {limit:g}' if limit < math.inf else ''}.")
    return value
