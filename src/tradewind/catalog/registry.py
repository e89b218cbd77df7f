"""The registry of named networks: descriptions, sources, options and builders."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from tradewind.catalog import clouds, generators
from tradewind.catalog.graphs import GraphInfo, graph_infos, load_graph
from tradewind.catalog.traces import load_trace
from tradewind.errors import BadOption, UnknownName
from tradewind.formats import read_network
from tradewind.network import Network


@dataclass(frozen=True, slots=True)
class CatalogOption:
    """An option of a catalog network."""

    name: str
    default: Any
    meaning: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A network of the catalog; its sizes are those with default options."""

    name: str
    sites: int
    links: int
    description: str
    source: str
    options: tuple[CatalogOption, ...]


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of networks that take none."""


@dataclass(frozen=True, slots=True)
class UniformBandwidth:
    """Options of topologies that were published without bandwidths."""

    bandwidth_mbps: Annotated[
        float, Meta(gt=0, le=1e9, description="bandwidth of every link; the source gives none")
    ] = 1000.0


@dataclass(frozen=True, slots=True)
class MomentOptions:
    """Options of networks that also have a trace."""

    time_s: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="the trace's rates at this time; null: the base rates")
    ] = None


@dataclass(frozen=True, slots=True)
class _Recipe:
    description: str
    source: str
    options: type
    build: Callable[[Any], Network]


_CLOUDS = {
    "skyplane": _Recipe(
        "62 regions of AWS, Azure and GCP, measured full mesh",
        "skyplane-project/skyplane, 2022 (bandwidth of November, RTT of April)",
        clouds.SkyplaneOptions,
        clouds.skyplane,
    ),
    "ec2-hotcloud18": _Recipe(
        "11 EC2 regions, measured single-flow full mesh; direction ambiguous in the source",
        "Lai et al., HotCloud'18, Fig. 1a",
        clouds.HotCloudOptions,
        clouds.ec2_hotcloud18,
    ),
    "equinix20-like": _Recipe(
        "substitute for Equinix: 20 regions, 141 links; not the published network's edges",
        "constructed from Skyplane's measurements",
        NoOptions,
        lambda _: clouds.skyplane_subgraph("equinix20-like"),
    ),
    "idn40-like": _Recipe(
        "substitute for Microsoft's IDN: 40 regions, 231 links; not the real edges",
        "constructed from Skyplane's measurements",
        NoOptions,
        lambda _: clouds.skyplane_subgraph("idn40-like"),
    ),
}

_GENERATED = {
    "mtree-skewed": _Recipe(
        "MTREE's random bandwidths and latencies on a topology of the catalog",
        "MTREE IV-A",
        generators.SkewedOptions,
        lambda o: generators.mtree_skewed(load_network(o.topology), o.skewness, o.seed),
    ),
    "crew-n1": _Recipe(
        "CREW's N1: full mesh, links drawn from EC2 measurements",
        "CREW V",
        generators.CrewOptions,
        generators.crew_n1,
    ),
    "crew-n2": _Recipe(
        "CREW's N2: full mesh, links around 125 Mbps",
        "CREW V",
        generators.CrewOptions,
        generators.crew_n2,
    ),
    "selective-nics": _Recipe(
        "Selective Reduce's workers: skewed NICs on a non-blocking switch",
        "Selective Reduce IV",
        generators.NicOptions,
        generators.selective_nics,
    ),
    "ds-sync-racks": _Recipe(
        "DS-Sync's racks behind shared uplinks, in three scenarios",
        "DS-Sync V-A",
        generators.RackOptions,
        generators.ds_sync_racks,
    ),
    "mesh": _Recipe(
        "full mesh with uniform random bandwidths",
        "synthetic",
        generators.MeshOptions,
        generators.random_mesh,
    ),
}


def load_network(name: str | Path, **options: Any) -> Network:
    """The network of that name in the catalog, or the network in that file (`read_network`).

    A `Path`, and a name with a suffix that is not in the catalog, is a file. Options are for networks of the catalog,
    and may be text, as from a command line. Raises `UnknownName` or `BadOption` for wrong names and options.

    >>> load_network("skyplane", provider="aws", count=8)
    Network('skyplane-aws-8', 8 sites, 56 links, 0 trunks)
    """
    if isinstance(name, Path) or (name not in _recipes() and Path(name).suffix):
        if options:
            raise BadOption(f"{str(name)!r} is a file, which takes no option {next(iter(options))!r}. Leave it out.")
        return read_network(name)
    recipe = _recipe(name)
    return recipe.build(_options(name, recipe.options, options))


@lru_cache(maxsize=1)
def list_networks() -> tuple[CatalogEntry, ...]:
    """All networks that `load_network` knows by name, in catalog order."""
    entries = []
    for name, recipe in _recipes().items():
        network = recipe.build(recipe.options())
        options = tuple(
            CatalogOption(field.name, field.default, _meaning(recipe.options, field.name))
            for field in fields(recipe.options)
        )
        entries.append(CatalogEntry(name, len(network), network.link_count, recipe.description, recipe.source, options))
    return tuple(entries)


def _recipe(name: str) -> _Recipe:
    recipes = _recipes()
    if name not in recipes:
        raise UnknownName("network", name, recipes)
    return recipes[name]


@lru_cache(maxsize=1)
def _recipes() -> Mapping[str, _Recipe]:
    recipes = {name: _graph_recipe(name, info) for name, info in graph_infos().items()}
    recipes["netstorm9"] = replace(recipes["netstorm9"], options=MomentOptions, build=_netstorm9)
    return recipes | _CLOUDS | _GENERATED


def _graph_recipe(name: str, info: GraphInfo) -> _Recipe:
    if info.has_bandwidth:
        return _Recipe(info.description, info.source, NoOptions, lambda _: load_graph(name))
    return _Recipe(info.description, info.source, UniformBandwidth, lambda o: load_graph(name, o.bandwidth_mbps * 1e6))


def _netstorm9(options: MomentOptions) -> Network:
    if options.time_s is None:
        return load_graph("netstorm9")
    return load_trace("netstorm9").network_at(options.time_s)


def _options(name: str, kind: type, values: Mapping[str, Any]) -> Any:
    taken = {field.name: field for field in fields(kind)}
    given = {}
    for key, value in values.items():
        if key not in taken:
            takes = f"It takes {', '.join(taken)}." if taken else "It takes none."
            raise BadOption(f"network {name!r} takes no option {key!r}. {takes}")
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str) and isinstance(taken[key].default, tuple):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, float) and not math.isfinite(value):
            raise BadOption(f"network {name!r}, option {key!r}: expected a finite number, got {value}.")
        given[key] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadOption(f"network {name!r}: {error}.".replace(" - at `$.", ", option `")) from error


def _meaning(kind: type, name: str) -> str:
    hint = get_type_hints(kind, include_extras=True)[name]
    return next(meta.description or "" for meta in reversed(hint.__metadata__) if isinstance(meta, Meta))
