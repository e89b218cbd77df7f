"""Parsing and formatting of quantities: `200Mbps`, `1.5Gbit/s`, `180MB`, `64KiB`, `30ms`.

Inside Tradewind rates are bits per second, sizes are bytes and times are seconds; every name that holds one ends in its
unit (`bandwidth_bps`, `chunk_bytes`, `latency_s`). Text is converted only here. Network prefixes are decimal (1 Mbps =
10^6 bit/s); sizes accept both (`MB` = 10^6, `MiB` = 2^20). The case of the letter b distinguishes bits from bytes:
`MB/s` is bytes, `Mb/s` and `Mbps` are bits.
"""

from __future__ import annotations

import math
import re

from tradewind.errors import BadQuantity

_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_DECIMAL = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "m": 1e6,
    "M": 1e6,
    "g": 1e9,
    "G": 1e9,
    "t": 1e12,
    "T": 1e12,
    "P": 1e15,
}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIX = r"([kKmMgGtTP]i?|)"
_RATE = re.compile(_PREFIX + r"(bps|bit/s|bits/s|b/s|bit|Bps|B/s|byte/s|bytes/s)")
_SIZE = re.compile(_PREFIX + r"(B|byte|bytes|)")
_TIME_UNITS_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "h": 3600.0,
}

MAX_BYTES = 10**15
"""The largest accepted size, a petabyte: a larger number is a typing mistake, and would overflow predictions."""


def _split(text: str, kind: str, example: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text)
    if not found:
        raise BadQuantity(f"{text!r} is not a {kind}. Write it like {example}.")
    return float(found[1]), found[2]


def _scale(prefix: str) -> float | None:
    return _BINARY[prefix] if prefix in _BINARY else _DECIMAL.get(prefix)


def _positive(value: float, text: str, kind: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise BadQuantity(f"{text!r}: a {kind} must be a finite number above zero.")
    return value


def parse_rate(text: str) -> float:
    """Return bits per second from text; raise `BadQuantity` for a number without a unit, which is ambiguous.

    >>> parse_rate("200Mbps"), parse_rate("1.5Gbit/s"), parse_rate("10 MB/s")
    (200000000.0, 1500000000.0, 80000000.0)
    """
    number, unit = _split(text, "rate", "200Mbps or 1.5Gbit/s")
    found = _RATE.fullmatch(unit)
    scale = _scale(found[1]) if found else None
    if not found or scale is None:
        raise BadQuantity(f"{text!r}: {unit!r} is not a unit of rate. Write it like 200Mbps, 1.5Gbit/s or 25MB/s.")
    bits = 8.0 if found[2] in ("Bps", "B/s", "byte/s", "bytes/s") else 1.0
    return _positive(number * scale * bits, text, "rate")


def parse_size(text: str) -> int:
    """Return bytes from text; a number without a unit is bytes.

    >>> parse_size("180MB"), parse_size("64KiB"), parse_size("4096")
    (180000000, 65536, 4096)
    """
    number, unit = _split(text, "size", "180MB or 64KiB")
    found = _SIZE.fullmatch(unit)
    scale = _scale(found[1]) if found else None
    if not found or scale is None:
        raise BadQuantity(f"{text!r}: {unit!r} is not a unit of size. Write it like 180MB, 64KiB or 1.5GB.")
    value = number * scale
    if value > MAX_BYTES:
        raise BadQuantity(f"{text!r}: a size must be at most {format_size(MAX_BYTES)}.")
    if not value >= 1:
        raise BadQuantity(f"{text!r}: a size must be at least one byte.")
    return round(value)


def parse_count(text: str) -> int:
    """Return a number of things, such as parameters, from text: with K, M, B (or G) and T for thousands to trillions.

    >>> parse_count("125M"), parse_count("1.3B"), parse_count("4096")
    (125000000, 1300000000, 4096)
    """
    number, unit = _split(text, "number", "125M or 1.3B")
    scales = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
    if unit.lower() not in scales:
        raise BadQuantity(f"{text!r}: {unit!r} is not a multiple. Write it like 125M, 1.3B or 4096.")
    value = number * scales[unit.lower()]
    if not 1 <= value <= MAX_BYTES:
        raise BadQuantity(f"{text!r}: the number must be between 1 and {MAX_BYTES}.")
    return round(value)


def parse_duration(text: str) -> float:
    """Return seconds from text; zero is allowed, a number without a unit raises `BadQuantity`.

    >>> parse_duration("30ms"), parse_duration("2min")
    (0.03, 120.0)
    """
    number, unit = _split(text, "duration", "30ms or 2s")
    if unit not in _TIME_UNITS_S:
        raise BadQuantity(f"{text!r}: {unit!r} is not a unit of time. Write it like 30ms, 1.5s or 2min.")
    value = number * _TIME_UNITS_S[unit]
    if not math.isfinite(value) or value < 0:
        raise BadQuantity(f"{text!r}: a duration must be finite and not negative.")
    return value


def _significant(value: float, digits: int = 3) -> str:
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def format_rate(bps: float) -> str:
    """Format a rate for display.

    >>> format_rate(1.5e9), format_rate(20e6), format_rate(float("inf"))
    ('1.5 Gbps', '20 Mbps', 'unlimited')
    """
    if math.isinf(bps):
        return "unlimited"
    for scale, unit in ((1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps")):
        if bps >= scale * 0.9995:
            return f"{_significant(bps / scale)} {unit}"
    return f"{_significant(bps)} bps"


def format_size(nbytes: float) -> str:
    """Format a size for display, with decimal prefixes.

    >>> format_size(180_000_000), format_size(65536)
    ('180 MB', '65.5 kB')
    """
    for scale, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= scale * 0.9995:
            return f"{_significant(nbytes / scale)} {unit}"
    return f"{_significant(nbytes)} B"


def format_usd(usd: float) -> str:
    """Format a price in US dollars for display, with three digits where that is below a dollar.

    >>> format_usd(0.0), format_usd(0.0123456), format_usd(12.345), format_usd(1234567.0)
    ('$0', '$0.0123', '$12.35', '$1,234,567.00')
    """
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.3g}"


def format_count(number: int, thing: str) -> str:
    """Format a count with its noun, in the plural unless the count is 1.

    >>> format_count(1, "tree"), format_count(950, "tree"), format_count(2, "process")
    ('1 tree', '950 trees', '2 processes')
    """
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith('s') else 's'}"


def format_duration(seconds: float) -> str:
    """Format a duration for display.

    >>> format_duration(0.0304), format_duration(12.345), format_duration(4000)
    ('30.4 ms', '12.3 s', '1.11 h')
    """
    if math.isinf(seconds):
        return "never"
    for scale, unit in ((3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale * 0.9995:
            return f"{_significant(seconds / scale)} {unit}"
    return "0 s" if seconds == 0 else f"{_significant(seconds * 1e9)} ns"
