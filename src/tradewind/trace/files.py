"""Reading and writing of trace files."""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Iterable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tradewind.errors import BadOption, InputError
from tradewind.trace.perfetto import perfetto_events
from tradewind.trace.records import Record, Trace

COLUMNS = Record.__struct_fields__
TRACE_SUFFIXES = (".jsonl", ".csv", ".parquet", ".json")
PACKED_SUFFIX = ".jsonl.gz"
"""What live runs write: the native format, compressed as it grows."""
READABLE_SUFFIXES = (".jsonl", PACKED_SUFFIX, ".csv", ".parquet")


def encode_trace(trace: Trace, suffix: str) -> bytes:
    """Return a trace in the format of a file suffix; the same trace gives the same bytes.

    Raises `BadOption` for an unknown suffix, or if pyarrow is missing for `.parquet`.
    """
    match suffix.lower():
        case ".jsonl":
            return b"".join(msgspec.json.encode(record) + b"\n" for record in trace.records)
        case ".csv":
            return _to_csv(trace)
        case ".parquet":
            return _to_parquet(trace)
        case ".json":
            return msgspec.json.encode(perfetto_events(trace))
    raise BadOption(f"a trace cannot be written as {suffix!r}. Use one of {', '.join(TRACE_SUFFIXES)}.")


def read_trace(path: Path) -> Trace:
    """Return the trace in a file, whose suffix gives its format; raise `InputError` if it cannot be read."""
    name = path.name.lower()
    suffix = next((suffix for suffix in READABLE_SUFFIXES if name.endswith(suffix)), path.suffix.lower())
    if suffix not in READABLE_SUFFIXES:
        more = " A .json file is for the Perfetto viewer only." if suffix == ".json" else ""
        raise InputError(f"{path}: the suffix of a trace file must be one of {', '.join(READABLE_SUFFIXES)}.{more}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
    try:
        if suffix == PACKED_SUFFIX:
            data = _unpacked(data)
        if suffix in (".jsonl", PACKED_SUFFIX):
            rows: Iterable[Any] = msgspec.json.Decoder().decode_lines(_whole_lines(data))
        else:
            rows = _from_csv(data) if suffix == ".csv" else _from_parquet(data)
        return Trace(tuple(msgspec.convert(row, Record, strict=False) for row in rows))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path} is not a valid trace: {error}. Give a file from simulate --trace or trace=."
        ) from error


def trace_packer() -> Any:
    """A compressor for the rest of a trace file; what it gives after a synchronising flush can be read alone."""
    return zlib.compressobj(1, wbits=31)  # higher levels take several times as long for a tenth fewer bytes


_PACKED_HEAD = trace_packer().flush()[:8]
"""The first bytes of what each process that was started appended to a file, without level and system."""


def _unpacked(data: bytes) -> bytes:
    """All lines of a packed file, whose parts may end anywhere: processes are killed while they write."""
    starts = [match.start() for match in re.finditer(re.escape(_PACKED_HEAD), data)]
    if data and not starts:
        raise ValueError("it is not compressed")
    parts = []
    for start, end in pairwise([*starts, len(data)]):
        try:
            parts.append(_whole_part(zlib.decompressobj(wbits=31).decompress(data[start:end])))
        except zlib.error as error:
            raise ValueError(f"bytes {start} to {end} are damaged ({error})") from None
    return b"".join(parts)


def _whole_part(lines: bytes) -> bytes:
    return lines[: lines.rfind(b"\n") + 1]


def _whole_lines(data: bytes) -> bytes:
    """Without a last line that was cut off, as a process leaves it that is killed while it writes."""
    whole, _, rest = data.rpartition(b"\n")
    return whole if whole and not rest.rstrip().endswith(b"}") else data


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """Files as they are given, and for a directory, such as `trace=` has, every file of a run in it, by name."""
    found: list[Path] = []
    for path in paths:
        inside = sorted([*path.glob("*.jsonl"), *path.glob(f"*{PACKED_SUFFIX}")]) if path.is_dir() else [path]
        if not inside:
            raise InputError(
                f"{path} holds no .jsonl or {PACKED_SUFFIX} files. Give a directory that a run was traced to (trace=)."
            )
        found += inside
    return found


def _rows(trace: Trace) -> Iterable[list[Any]]:
    for record in trace.records:
        row = [getattr(record, column) for column in COLUMNS]
        row[COLUMNS.index("members")] = msgspec.json.encode(record.members).decode() if record.members else ""
        yield row


def _to_csv(trace: Trace) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([repr(v) if isinstance(v, float) else v for v in row] for row in _rows(trace))
    return text.getvalue().encode()


def _from_csv(data: bytes) -> Iterable[dict[str, Any]]:
    for row in csv.DictReader(io.StringIO(data.decode(), newline="")):
        yield _cells(row)


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as fields of a record; empty cells are left out, so that they get the defaults."""
    filled = {key: value for key, value in row.items() if value not in ("", None)}
    if "members" in filled:
        filled["members"] = msgspec.json.decode(filled["members"])
    return filled


def _to_parquet(trace: Trace) -> bytes:
    arrow, parquet = _pyarrow()
    types = dict.fromkeys(("round", "step", "shard", "retransmits", "count"), arrow.int64())
    numbers = ("start_s", "end_s", "service_s", "nbytes", "sent_bytes", "rate_bps", "predicted_s", "load")
    types |= dict.fromkeys((*numbers, "usd_per_gb", "latency_s", "spread", "lat", "lon", "spent_s"), arrow.float64())
    columns = list(zip(*_rows(trace), strict=True)) or [()] * len(COLUMNS)
    arrays = [
        arrow.array(column, types.get(name, arrow.string())) for name, column in zip(COLUMNS, columns, strict=True)
    ]
    buffer = io.BytesIO()
    parquet.write_table(arrow.Table.from_arrays(arrays, names=list(COLUMNS)), buffer)
    return buffer.getvalue()


def _from_parquet(data: bytes) -> Iterable[dict[str, Any]]:
    _, parquet = _pyarrow()
    return [_cells(row) for row in parquet.read_table(io.BytesIO(data)).to_pylist()]


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadOption(
            "Parquet needs pyarrow, which is not installed. Install it with: pip install tradewind[parquet], or use "
            ".csv or .jsonl."
        ) from error
