"""Catalog of real networks, the papers' synthetic networks, and compute-time traces (see data/PROVENANCE.md)."""

from __future__ import annotations

from tradewind.catalog.compute_times import ComputeTimes, list_compute_times, load_compute_times
from tradewind.catalog.registry import CatalogEntry, CatalogOption, list_networks, load_network
from tradewind.catalog.traces import BandwidthTrace, list_traces, load_trace

__all__ = [
    "BandwidthTrace",
    "CatalogEntry",
    "CatalogOption",
    "ComputeTimes",
    "list_compute_times",
    "list_networks",
    "list_traces",
    "load_compute_times",
    "load_network",
    "load_trace",
]
