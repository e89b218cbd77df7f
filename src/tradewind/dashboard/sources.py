"""Where a view comes from: the server of a live run, or trace files."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tradewind.dashboard.model import RunModel
from tradewind.errors import InputError
from tradewind.trace import merge_traces, read_trace, trace_files

FETCH_S = 10.0


def is_address(source: str) -> bool:
    """Whether a source is an address rather than a file.

    >>> is_address("localhost:8080"), is_address(":8080"), is_address("http://a:1/"), is_address("run.jsonl")
    (True, True, True, False)
    """
    return source.startswith("http") or (source.rpartition(":")[2].isdecimal() and not Path(source).exists())


def page_url(address: str, token: str | None = None, path: str = "") -> str:
    """The URL of a page of the server at `address`.

    >>> page_url(":8080"), page_url("fra:8080", "abc", "view?since=7")
    ('http://localhost:8080/', 'http://fra:8080/view?since=7&token=abc')
    """
    if not address.startswith("http"):
        host, _, port = address.rpartition(":")
        address = f"http://{host or 'localhost'}:{port}/"
    base, _, query = address.partition("?")
    joined = f"{base.rstrip('/')}/{path}"
    more = [f"token={token}"] if token else [query] if query else []
    return joined + ("&" if "?" in joined else "?") * bool(more) + "".join(more)


def fetch_view(address: str, token: str | None = None, since: int = 0) -> dict[str, Any]:
    """What changed in a live run after a version; raises InputError if its server does not answer."""
    url = page_url(address, token, f"view?since={since}")
    try:
        with urllib.request.urlopen(url, timeout=FETCH_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        why = "set --token to the one in the run's log" if error.code == 403 else "check the address"
        raise InputError(f"{address} answered {error.code} {error.reason}: {why}.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{address} does not answer ({reason}). Check that the run has dashboard= set.") from None


def load_model(paths: Sequence[Path]) -> RunModel:
    """The state at the end of the run in these trace files and directories."""
    return RunModel.of(merge_traces([read_trace(path) for path in trace_files(paths)]).trace)
