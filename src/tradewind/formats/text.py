"""Decoding of files to text, and of text to quantities, for all formats."""

from __future__ import annotations

import math
import re

from tradewind.errors import BadNetwork, BadQuantity
from tradewind.units import parse_duration, parse_rate

_PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def decode(data: bytes | str, source: str) -> str:
    """The text of a file. Raises `BadNetwork` for anything but UTF-8 text."""
    if isinstance(data, str):
        text = data
    else:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise BadNetwork(f"{source}: is UTF-16 text. Save it as UTF-8.")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadNetwork(f"{source}: is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
    if "\0" in text:
        raise BadNetwork(f"{source}: is not a text file (it contains a zero byte). Give JSON, CSV, GraphML or GML.")
    return text


def is_plain_number(text: str) -> bool:
    """Whether the text is a decimal number and nothing else (no unit, no `nan`, no `1_000`)."""
    return _PLAIN_NUMBER.fullmatch(text) is not None


def to_number(text: str) -> float:
    """The value of a finite plain number; raises `BadQuantity` for anything else."""
    value = float(text) if is_plain_number(text) else math.nan
    if not math.isfinite(value):
        raise BadQuantity(f"expected a finite number, got {text!r}.")
    return value


def to_bandwidth_bps(text: str, plain_unit: str = "Mbps") -> float:
    """A bandwidth in bits per second; a plain number is in `plain_unit`.

    >>> to_bandwidth_bps("200"), to_bandwidth_bps("1.5 Gbps"), to_bandwidth_bps("1e9", plain_unit="bps")
    (200000000.0, 1500000000.0, 1000000000.0)
    """
    return parse_rate(text + plain_unit if is_plain_number(text) else text)


def to_latency_ms(text: str) -> float:
    """A latency in milliseconds; a plain number is in milliseconds. Raises `BadQuantity` if it is negative.

    >>> to_latency_ms("30"), to_latency_ms("30 ms"), to_latency_ms("0.5s")
    (30.0, 30.0, 500.0)
    """
    number = text.removesuffix("ms").rstrip()
    value = float(number) if is_plain_number(number) else parse_duration(text) * 1e3
    if not 0 <= value < math.inf:
        raise BadQuantity(f"{text!r}: a latency must be finite and not negative.")
    return value
