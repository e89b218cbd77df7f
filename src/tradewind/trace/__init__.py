"""Traces of a run, in one record format that the simulator and the runtime share.

A trace is a list of `Record`s. An activity is one record with its start and end; a decision has a single point in time.
`encode_trace` takes the format from the file suffix: `.jsonl` (one record per line, the native format), `.csv` and
`.parquet` (one row per record), `.json` (trace events for the Perfetto viewer). `read_trace` reads the first three.
"""

from __future__ import annotations

from tradewind.trace.files import TRACE_SUFFIXES, encode_trace, read_trace, trace_files
from tradewind.trace.merge import Merged, merge_traces
from tradewind.trace.records import Kind, Record, Trace

__all__ = [
    "TRACE_SUFFIXES",
    "Kind",
    "Merged",
    "Record",
    "Trace",
    "encode_trace",
    "merge_traces",
    "read_trace",
    "trace_files",
]
