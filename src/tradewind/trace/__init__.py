"""What happened, in one record format, written by the simulator and by the runtime alike.

A trace is a list of `Record`s. Whatever has a beginning and an end is one record with both; a decision is a moment.
`write_trace` picks the format by the file's suffix: `.jsonl` (one record a line, the native form), `.csv` and
`.parquet` (one row a record), `.json` (trace events for the Perfetto viewer). `read_trace` reads the first three.
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
