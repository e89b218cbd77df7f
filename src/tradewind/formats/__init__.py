"""Readers and writers of network files: our JSON, CSV matrices and lists of links, GraphML and GML.

`read_network` chooses the format by the file's suffix. Every reader accepts arbitrary text, and returns a valid
`Network` or raises a `TradewindError` with the file, what is wrong and what to do: nothing is corrected silently or
read in part. Latencies are one way. docs/reference/networks.md describes each format.
"""

from __future__ import annotations

from pathlib import Path

from tradewind.errors import BadNetwork, BadOption
from tradewind.formats.csv_matrix import network_from_csv
from tradewind.formats.gml import network_from_gml
from tradewind.formats.graphml import network_from_graphml
from tradewind.formats.json_network import (
    NetworkDocument,
    network_from_document,
    network_from_json,
    network_to_document,
    network_to_json,
)
from tradewind.network import Network

MAX_FILE_BYTES = 64 * 2**20
SUFFIXES = (".json", ".csv", ".graphml", ".gml")

__all__ = [
    "MAX_FILE_BYTES",
    "SUFFIXES",
    "NetworkDocument",
    "network_from_csv",
    "network_from_document",
    "network_from_gml",
    "network_from_graphml",
    "network_from_json",
    "network_to_document",
    "network_to_json",
    "read_network",
]


def read_network(
    path: str | Path, latency_path: str | Path | None = None, default_bandwidth_bps: float | None = None
) -> Network:
    """Read a network from a file; its suffix .json, .csv, .graphml or .gml is the format.

    `latency_path` is a latency matrix for a CSV bandwidth matrix; `default_bandwidth_bps` is the bandwidth of edges
    without one in a GraphML or GML file. Raises `BadOption` for either with another format, and `BadNetwork` for a file
    that cannot be read or is not a valid network.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise BadNetwork(f"{path}: cannot tell the format from the suffix {suffix!r}. Use {', '.join(SUFFIXES)}.")
    if latency_path is not None and suffix != ".csv":
        raise BadOption(f"{path}: a separate latency file is only for a .csv bandwidth matrix. Leave it out.")
    if default_bandwidth_bps is not None and suffix not in (".graphml", ".gml"):
        raise BadOption(f"{path}: a default bandwidth is only for .graphml and .gml. Leave it out.")
    data, source = _read(path), str(path)
    if suffix == ".json":
        return network_from_json(data, source)
    if suffix == ".csv":
        latency = None if latency_path is None else _read(Path(latency_path))
        return network_from_csv(data, latency, source, str(latency_path), name=path.stem)
    reader = network_from_graphml if suffix == ".graphml" else network_from_gml
    return reader(data, source, default_bandwidth_bps, name=path.stem)


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise BadNetwork(f"{path}: {'is not a file' if path.exists() else 'no such file'}. Check the path.")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path that holds a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadNetwork(f"{path}: cannot be read ({reason}). Check the path and its permissions.") from error
    if len(data) > MAX_FILE_BYTES:
        raise BadNetwork(f"{path}: a network file must be at most {MAX_FILE_BYTES >> 20} MiB.")
    return data
