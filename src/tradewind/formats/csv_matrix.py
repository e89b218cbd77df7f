"""Reader of a bandwidth matrix in CSV, with an optional latency matrix.

The format of a spreadsheet or an iperf script: the header row and the first column name the sites, a row is a source, a
column a destination. Cells are separated by commas, semicolons or tabs. A file whose header has columns for a source, a
destination and a bandwidth is a list of links instead (`csv_edges`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import numpy as np

from tradewind.errors import BadNetwork, BadOption, BadQuantity
from tradewind.formats.csv_edges import Row, is_edge_list, network_from_edges
from tradewind.formats.text import decode, is_plain_number, to_bandwidth_bps, to_latency_ms
from tradewind.network import MAX_SITES, Matrix, Network, Site

NO_LINK = ("", "-")


def network_from_csv(
    bandwidth: bytes | str,
    latency: bytes | str | None = None,
    source: str = "bandwidth CSV",
    latency_source: str = "latency CSV",
    *,
    name: str = "matrix",
) -> Network:
    """The network of a bandwidth matrix, or of a list of links.

    Plain numbers in the matrix are Mbps; `0`, `-` and an empty cell mean no link. `source` and `latency_source` name
    the inputs in errors. Raises `BadNetwork` with the row or cell that is wrong, and `BadOption` for a latency matrix
    with a list of links.

    >>> network_from_csv(",a,b\\na,,200\\nb,1.5Gbps,", ",a,b\\na,0,30\\nb,30,0").link("b", "a")
    Link(src='b', dst='a', bandwidth_bps=1500000000.0, latency_s=0.03, loss=0.0, usd_per_gb=0.0)
    >>> network_from_csv("src,dst,mbps,ms\\nb,a,1500,30").link("b", "a")
    Link(src='b', dst='a', bandwidth_bps=1500000000.0, latency_s=0.03, loss=0.0, usd_per_gb=0.0)
    """
    rows = _rows(decode(bandwidth, source), source)
    if is_edge_list(rows[0][1]):
        if latency is not None:
            raise BadOption(f"{source}: is a list of links, which has its own latencies. Leave out {latency_source}.")
        return network_from_edges(rows, source, name)
    names, bandwidth_bps = _matrix(rows, source, to_bandwidth_bps, absent=0.0)
    latency_s = None
    if latency is not None:
        latency_rows = _rows(decode(latency, latency_source), latency_source)
        latency_s = _latencies(latency_rows, latency_source, names, bandwidth_bps)
    try:
        return Network(name, [Site(n) for n in names], bandwidth_bps, latency_s)
    except BadNetwork as error:
        raise BadNetwork(f"{source}: {error}") from error


def _latencies(rows: list[Row], source: str, names: list[str], bandwidth_bps: Matrix) -> Matrix:
    """The latency matrix in the order of the bandwidth matrix; every link needs one."""
    own_names, latency_ms = _matrix(rows, source, to_latency_ms, absent=np.nan)
    if set(own_names) != set(names):
        odd = sorted(set(own_names) ^ set(names))[0]
        raise BadNetwork(f"{source}: site {odd!r} is in only one of the two matrices. Both must name the same sites.")
    order = [own_names.index(n) for n in names]
    latency_ms = latency_ms[np.ix_(order, order)]
    missing = np.argwhere((bandwidth_bps > 0) & np.isnan(latency_ms))
    if len(missing):
        i, j = missing[0]
        raise BadNetwork(f"{source}: no latency for link {names[i]}->{names[j]}, which has a bandwidth. Add it.")
    return np.nan_to_num(latency_ms) / 1e3


def _matrix(rows: list[Row], source: str, convert: Callable[[str], float], absent: float) -> tuple[list[str], Matrix]:
    """Site names and numbers of one matrix; `absent` is the value of an empty cell."""
    names = rows[0][1][1:]
    if not 1 <= len(names) <= MAX_SITES:
        raise BadNetwork(f"{source}: the header names {len(names)} sites, expected 1 to {MAX_SITES}.")
    index = {name: i for i, name in enumerate(names)}
    if len(index) < len(names) or "" in index:
        odd = next(name for i, name in enumerate(names) if not name or name in names[:i])
        raise BadNetwork(f"{source}: the header must name each site exactly once, but it has {odd!r}.")
    matrix = np.full((len(names), len(names)), absent)
    left = set(names)
    for number, row in rows[1:]:
        if row[0] not in left:
            raise BadNetwork(f"{source}: row {number} is for {row[0]!r}: expected one row for each name in the header.")
        if len(row) != len(names) + 1:
            raise BadNetwork(
                f"{source}: row {number} ({row[0]!r}) has {len(row) - 1} cells for {len(names)} sites. "
                "Write one cell for each site of the header; empty means no link."
            )
        left.remove(row[0])
        i = index[row[0]]
        for j, cell in enumerate(row[1:]):
            matrix[i, j] = _cell(cell, convert, absent, f"{source}: {row[0]}->{names[j]}", on_diagonal=i == j)
    if left:
        raise BadNetwork(f"{source}: no row for site {sorted(left)[0]!r}. Add one row for each site of the header.")
    return names, matrix


def _cell(cell: str, convert: Callable[[str], float], absent: float, where: str, on_diagonal: bool) -> float:
    is_zero = is_plain_number(cell) and float(cell) == 0
    if cell in NO_LINK or (is_zero and (on_diagonal or absent == 0)):
        return absent
    if on_diagonal:
        raise BadNetwork(f"{where} is {cell!r}, but a site has no link to itself. Leave the diagonal empty.")
    try:
        return convert(cell)
    except BadQuantity as error:
        raise BadNetwork(f"{where}: {error}") from error


def _rows(text: str, source: str) -> list[Row]:
    """The lines that are not empty, with their numbers."""
    header = text.lstrip("\r\n").partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader]
    except csv.Error as error:
        raise BadNetwork(
            f"{source}: is not valid CSV ({error}). See docs/reference/networks.md for the format."
        ) from error
    rows = [(number, cells) for number, cells in lines if any(cells)]
    if len(rows) < 2:
        raise BadNetwork(
            f"{source}: is not a matrix, which needs a header row with the sites' names and a row for each, nor a list "
            "of links, which needs a header row such as src,dst,mbps,ms and a row for each link."
        )
    return rows
