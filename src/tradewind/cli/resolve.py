"""Resolve arguments of the command line: NETWORK, `KEY=VALUE` options and lists of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tradewind.errors import BadOption, UnknownName

if TYPE_CHECKING:
    from tradewind.network import Network


def resolve_network(
    text: str,
    seed: int | None = None,
    options: Sequence[str] | None = None,
    latency: Path | None = None,
    default_bandwidth: str | None = None,
    prices: Path | None = None,
    ranks: int | None = None,
) -> Network:
    """The network that NETWORK names, in the catalog or in a file, with prices from the file `prices` if given.

    Its rows are ranks where sites have several: `ranks` of each site if given, else as many as the network says.
    """
    found = _resolve(text, seed, options, latency, default_bandwidth)
    if prices is not None:
        from tradewind.formats.prices import with_prices_from_csv

        try:
            found = with_prices_from_csv(found, prices.read_bytes(), str(prices))
        except OSError as error:
            raise BadOption(f"--prices {prices}: cannot be read ({error.strerror}). Check the path.") from None
    return (found if ranks is None else found.with_ranks_each(ranks)).with_ranks()


def _resolve(
    text: str,
    seed: int | None,
    options: Sequence[str] | None,
    latency: Path | None,
    default_bandwidth: str | None,
) -> Network:
    """The network that NETWORK names, in the catalog or in a file.

    The catalog goes first, unless the text looks like a path (a separator or a suffix) and a file is there: a file
    `gscale` in the working directory must not change what `gscale` means, and `./gscale` must mean that file.
    """
    path = Path(text)
    looks_like_path = len(path.parts) > 1 or bool(path.suffix)
    unknown = None
    if not (looks_like_path and _exists(path)):
        try:
            found = _load(text, seed, options)
        except UnknownName as error:
            if (error.kind, error.name) != ("network", text):  # the network exists, a name in its options does not
                raise
            unknown = error
        else:
            _refuse(text, "is a catalog network", {"--latency": latency, "--default-bandwidth": default_bandwidth})
            return found
    if unknown is not None and (not text or not (path.suffix or _exists(path))):
        raise unknown
    _refuse(text, "is a file", {"--seed": seed, "--option": options or None})
    return _read(path, latency, default_bandwidth)


def _load(name: str, seed: int | None, options: Sequence[str] | None) -> Network:
    from tradewind.catalog import load_network

    chosen = parse_options(options)
    if seed is not None:
        if "seed" in chosen:
            raise BadOption("--seed and --option seed=... are both given. Leave one out.")
        chosen["seed"] = str(seed)
    return load_network(name, **chosen)


def _read(path: Path, latency: Path | None, default_bandwidth: str | None) -> Network:
    from tradewind.formats import read_network
    from tradewind.units import parse_rate

    rate_bps = None if default_bandwidth is None else parse_rate(default_bandwidth)
    return read_network(path, latency_path=latency, default_bandwidth_bps=rate_bps)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or contains a zero byte: not a file
        return False


def _refuse(text: str, why: str, flags: Mapping[str, object]) -> None:
    """Raise `BadOption` for flags that would be ignored: the result would be for another network than was meant."""
    for flag, value in flags.items():
        if value is not None:
            raise BadOption(f"{text!r} {why}, which takes no {flag}. Leave it out.")


def parse_options(pairs: Sequence[str] | None, flag: str = "--option") -> dict[str, str]:
    """`key=value` words as a dictionary of text; the network parses the values.

    >>> parse_options(["n=60", "min-mbps=20"])
    {'n': '60', 'min_mbps': '20'}
    """
    options: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise BadOption(f"{flag} {pair!r}: expected KEY=VALUE.")
        if key in options:
            raise BadOption(f"{flag} {key} is given twice. Give it once.")
        options[key] = value.strip()
    return options


def parse_names(text: str | None, flag: str) -> tuple[str, ...] | None:
    """Names from `a,b,c`; None if nothing is given.

    >>> parse_names("fra, sin", "--members"), parse_names(None, "--members")
    (('fra', 'sin'), None)
    """
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise BadOption(f"{flag} {text!r} contains an empty name. Write it like {flag} a,b.")
    return names
