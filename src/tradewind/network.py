"""The network model: the capacities of directed links, of site NICs and of shared trunks.

A Network is the input of every planner. It is stored as matrices (row = source, column = destination, in the order of
`sites`), because planners compute on matrices and a mesh of a thousand sites has a million links; `links` gives the
same as objects. It is immutable and checked on construction, so every instance is valid. A zero in `bandwidth_bps`
means that there is no link, so a link of bandwidth zero cannot be expressed: leave it out instead.

Four kinds of capacity cover the five papers: independent directed links (CREW's mesh, MTREE's and NetStorm's sparse
graphs), a site's NIC in each direction (`egress_bps`, `ingress_bps`: Selective Reduce), and trunks, a capacity shared
by all traffic from one zone to another (DS-Sync's rack uplinks). Zone `*` on one side of a trunk means any other zone:
`("asia", "*")` is all traffic that leaves asia.

Several ranks may be on one site. `with_ranks` gives the network whose rows are ranks: those of one site exchange over
its local network, which counts as unlimited, and share what the site has: its NIC, and its link to each other site.
A site may consist of machines, a second level of the same model: ranks of one machine share its NIC for everything that
leaves the machine, to other sites and to other machines of the site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tradewind.errors import BadNetwork, UnknownName

Matrix = npt.NDArray[np.float64]

MAX_SITES = 5000
ANY_ZONE = "*"
MAX_RANKS = 1024
"""Most ranks of one site."""
RANK_SEPARATOR = "/"
LOCAL_BPS = 100e9
"""Bandwidth between two ranks of one site: so high that plans are limited by links between sites or by processors."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a site with a NIC of its own: `egress_bps` and `ingress_bps`, infinite if not limited."""

    name: str
    ranks: int = 1
    egress_bps: float = math.inf
    ingress_bps: float = math.inf


@dataclass(frozen=True, slots=True)
class Site:
    """A place with its own network attachment: a data center, a cloud region, a rack or a machine.

    `lat` and `lon` are in degrees; `egress_bps` and `ingress_bps` are NIC capacities in bit/s, infinite if not limited.
    `ranks` is the number of ranks on it. They fill its `machines` in order; a site without any is a single machine. In
    a network of ranks (`Network.with_ranks`), `place` is the site that a rank is on; the capacities are those of the
    site, shared by its ranks.
    """

    name: str
    zone: str | None = None
    provider: str | None = None
    lat: float | None = None
    lon: float | None = None
    egress_bps: float = math.inf
    ingress_bps: float = math.inf
    ranks: int = 1
    place: str | None = None
    machines: tuple[Machine, ...] = ()

    def machine_of(self, rank: str) -> Machine | None:
        """The machine that the rank of this name is on, by its number; None for a site without machines.

        Ranks beyond those that the machines have, such as some that join later, count as on the last machine.

        >>> fra = Site("fra", machines=(Machine("m0", ranks=2), Machine("m1")))
        >>> [fra.machine_of(f"fra/{number}").name for number in range(4)]
        ['m0', 'm0', 'm1', 'm1']
        """
        left = _by_number(rank)[0]
        for machine in self.machines:
            if left < machine.ranks:
                return machine
            left -= machine.ranks
        return self.machines[-1] if self.machines else None

    def with_capacities(self, change: Callable[[float, float], tuple[float, float]]) -> Site:
        """The site with other NIC capacities, its machines' included; `change` gets both and returns both."""
        machines = []
        for machine in self.machines:
            out_bps, in_bps = change(machine.egress_bps, machine.ingress_bps)
            machines.append(replace(machine, egress_bps=out_bps, ingress_bps=in_bps))
        out_bps, in_bps = change(self.egress_bps, self.ingress_bps)
        return replace(self, egress_bps=out_bps, ingress_bps=in_bps, machines=tuple(machines))


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link, or an overlay path between two sites; `loss` is a fraction in [0, 1).

    `usd_per_gb` is the price of the bytes that leave its source over it.
    """

    src: str
    dst: str
    bandwidth_bps: float
    latency_s: float = 0.0
    loss: float = 0.0
    usd_per_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Trunk:
    """A capacity shared by all traffic from `src_zone` to `dst_zone` (`*`: any other zone)."""

    name: str
    src_zone: str
    dst_zone: str
    capacity_bps: float


def _matrix(value: npt.ArrayLike, n: int, what: str, name: str) -> Matrix:
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadNetwork(f"network {name!r}: the {what} matrix must hold numbers only.") from error
    if matrix.shape != (n, n):
        raise BadNetwork(f"network {name!r}: the {what} matrix must be {(n, n)} for {n} sites, got {matrix.shape}.")
    return matrix


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Network:
    """Sites, directed links, NIC capacities and trunks.

    `bandwidth_bps`, `latency_s`, `loss` and `usd_per_gb` are matrices of one row and column per site; all but the first
    default to zero. Raises `BadNetwork` if a site, link or trunk breaks a rule.

    >>> net = Network("pair", [Site("a"), Site("b")], bandwidth_bps=[[0, 2e8], [1e8, 0]])
    >>> net.link("a", "b").bandwidth_bps, len(net.links)
    (200000000.0, 2)
    """

    name: str
    sites: tuple[Site, ...]
    bandwidth_bps: Matrix
    latency_s: Matrix
    loss: Matrix
    trunks: tuple[Trunk, ...]
    usd_per_gb: Matrix

    def __init__(
        self,
        name: str,
        sites: Iterable[Site],
        bandwidth_bps: npt.ArrayLike,
        latency_s: npt.ArrayLike | None = None,
        loss: npt.ArrayLike | None = None,
        trunks: Iterable[Trunk] = (),
        usd_per_gb: npt.ArrayLike | None = None,
    ) -> None:
        sites = tuple(sites)
        n = len(sites)
        _check_sites(name, sites)
        bandwidth = _matrix(bandwidth_bps, n, "bandwidth", name)
        latency = np.zeros((n, n)) if latency_s is None else _matrix(latency_s, n, "latency", name)
        lost = np.zeros((n, n)) if loss is None else _matrix(loss, n, "loss", name)
        price = np.zeros((n, n)) if usd_per_gb is None else _matrix(usd_per_gb, n, "price", name)
        _check_links(name, sites, bandwidth, latency, lost)
        if not (np.isfinite(price) & (price >= 0)).all():
            raise BadNetwork(
                f"network {name!r}: prices must be finite and not negative, got {price.min():g} USD per GB."
            )
        absent = bandwidth == 0
        for matrix in (latency, lost, price):
            matrix[absent] = 0.0  # so that equal networks have equal matrices
        trunks = tuple(trunks)
        _check_trunks(name, sites, trunks)
        for matrix in (bandwidth, latency, lost, price):
            matrix.setflags(write=False)
        for key, value in (
            ("name", name),
            ("sites", sites),
            ("bandwidth_bps", bandwidth),
            ("latency_s", latency),
            ("loss", lost),
            ("trunks", trunks),
            ("usd_per_gb", price),
        ):
            object.__setattr__(self, key, value)

    @classmethod
    def from_links(
        cls, name: str, sites: Iterable[Site], links: Iterable[Link], trunks: Iterable[Trunk] = ()
    ) -> Network:
        """Build a network from link objects; raise `BadNetwork` for a duplicate or invalid link."""
        sites = tuple(sites)
        _check_sites(name, sites)
        index = {site.name: i for i, site in enumerate(sites)}
        bandwidth, latency, loss, price = (np.zeros((len(sites), len(sites))) for _ in range(4))
        for link in links:
            for end in (link.src, link.dst):
                if end not in index:
                    raise BadNetwork(f"network {name!r}: link {link.src}->{link.dst}: {end!r} is not one of its sites.")
            i, j = index[link.src], index[link.dst]
            if i == j:
                raise BadNetwork(f"network {name!r}: {link.src!r} has a link to itself. Remove it.")
            if bandwidth[i, j]:
                raise BadNetwork(f"network {name!r}: link {link.src}->{link.dst} is given twice. Merge the two.")
            if not (math.isfinite(link.bandwidth_bps) and link.bandwidth_bps > 0):
                raise BadNetwork(
                    f"network {name!r}: link {link.src}->{link.dst} has bandwidth {link.bandwidth_bps:g} bit/s; "
                    "it must be a finite number above zero. Leave out a link that carries nothing."
                )
            bandwidth[i, j], latency[i, j], loss[i, j] = link.bandwidth_bps, link.latency_s, link.loss
            price[i, j] = link.usd_per_gb
        return cls(name, sites, bandwidth, latency, loss, trunks, price)

    # --- lookup --------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the sites, in order."""
        return tuple(site.name for site in self.sites)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Row and column of each site by name."""
        return {site.name: i for i, site in enumerate(self.sites)}

    def __len__(self) -> int:
        return len(self.sites)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        return (
            (self.name, self.sites, self.trunks) == (other.name, other.sites, other.trunks)
            and np.array_equal(self.bandwidth_bps, other.bandwidth_bps)
            and np.array_equal(self.latency_s, other.latency_s)
            and np.array_equal(self.loss, other.loss)
            and np.array_equal(self.usd_per_gb, other.usd_per_gb)
        )

    __hash__ = None  # type: ignore[assignment]

    def site(self, name: str) -> Site:
        """Return the site of this name; raise `UnknownName` if there is none."""
        try:
            return self.sites[self.index[name]]
        except KeyError:
            raise UnknownName("site", name, self.names) from None

    def link(self, src: str, dst: str) -> Link:
        """Return the link from `src` to `dst`; raise `UnknownName` if there is none."""
        i, j = self.index[self.site(src).name], self.index[self.site(dst).name]
        if not self.bandwidth_bps[i, j]:
            raise UnknownName("link", f"{src}->{dst}", (f"{src}->{self.names[k]}" for k in self.neighbours(i)))
        return self._link(i, j)

    def _link(self, i: int, j: int) -> Link:
        numbers = (float(m[i, j]) for m in (self.bandwidth_bps, self.latency_s, self.loss, self.usd_per_gb))
        return Link(self.names[i], self.names[j], *numbers)

    def neighbours(self, i: int) -> list[int]:
        """Return the rows of the sites that site `i` has a link to."""
        return [int(j) for j in np.flatnonzero(self.bandwidth_bps[i])]

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """All links as objects, ordered by source and destination."""
        return tuple(self._link(int(i), int(j)) for i, j in zip(*np.nonzero(self.bandwidth_bps), strict=True))

    @property
    def link_count(self) -> int:
        """Number of directed links."""
        return int(np.count_nonzero(self.bandwidth_bps))

    @cached_property
    def egress_bps(self) -> npt.NDArray[np.float64]:
        """NIC capacity out of each site, at most that of its machines together; infinite if not limited."""
        return np.array([min(s.egress_bps, _together(m.egress_bps for m in s.machines)) for s in self.sites])

    @cached_property
    def ingress_bps(self) -> npt.NDArray[np.float64]:
        """NIC capacity into each site, at most that of its machines together; infinite if not limited."""
        return np.array([min(s.ingress_bps, _together(m.ingress_bps for m in s.machines)) for s in self.sites])

    @cached_property
    def trunk_members(self) -> tuple[npt.NDArray[np.bool_], ...]:
        """For each trunk, the matrix of site pairs whose traffic it carries."""
        zones = [site.zone for site in self.sites]
        masks = []
        for trunk in self.trunks:
            src = np.array([z is not None and trunk.src_zone in (ANY_ZONE, z) for z in zones])
            dst = np.array([z is not None and trunk.dst_zone in (ANY_ZONE, z) for z in zones])
            other = np.array([[a != b for b in zones] for a in zones])
            masks.append(np.outer(src, dst) & other)
        return tuple(masks)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every link has the same bandwidth both ways, and so do the NICs and trunks."""
        both_ways = {(t.src_zone, t.dst_zone): t.capacity_bps for t in self.trunks}
        return (
            bool(np.array_equal(self.bandwidth_bps, self.bandwidth_bps.T))
            and bool(np.array_equal(self.egress_bps, self.ingress_bps))
            and all(both_ways.get((dst, src)) == capacity for (src, dst), capacity in both_ways.items())
        )

    @cached_property
    def strong_component(self) -> npt.NDArray[np.int32]:
        """For each site a number: sites with the same number can reach each other both ways."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        _, label = connected_components(csr_array(self.bandwidth_bps), directed=True, connection="strong")
        found: npt.NDArray[np.int32] = label
        return found

    @property
    def has_shared_capacity(self) -> bool:
        """Whether links share a finite NIC capacity or a trunk, or ranks share the links of their site."""
        caps = np.isfinite(self.egress_bps).any() or np.isfinite(self.ingress_bps).any()
        return bool(self.trunks or caps or self.shares_sites)

    # --- several ranks a site ------------------------------------------------------------------------

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The site of each row: the row itself, unless it is a rank of a site (`with_ranks`)."""
        return tuple(site.name if site.place is None else site.place for site in self.sites)

    @cached_property
    def first_row(self) -> npt.NDArray[np.int64]:
        """For each row, the first row of the same site, which stands for what the ranks of the site share."""
        first: dict[str, int] = {}
        return np.array([first.setdefault(place, row) for row, place in enumerate(self.places)], dtype=np.int64)

    @cached_property
    def shares_sites(self) -> bool:
        """Whether several rows are ranks of one site."""
        return len(set(self.places)) < len(self.places)

    @cached_property
    def is_local(self) -> npt.NDArray[np.bool_]:
        """The pairs of rows that are on one site."""
        together: npt.NDArray[np.bool_] = np.equal.outer(self.first_row, self.first_row)
        return together

    # --- machines of a site --------------------------------------------------------------------------

    @cached_property
    def has_machines(self) -> bool:
        """Whether rows are ranks on machines that have NICs of their own."""
        return any(machine is not None for machine in self.machines)

    @cached_property
    def machines(self) -> tuple[Machine | None, ...]:
        """The machine of each row; None for rows that are sites, and for ranks of a site without machines."""
        return tuple(site.machine_of(site.name) if site.place else None for site in self.sites)

    def machine_named(self, rank: str) -> Machine | None:
        """The machine of a rank by its name, which need not be in the network; None if its site has none."""
        place = self.site_of(rank)
        return None if place is None else self.sites[self.places.index(place)].machine_of(rank)

    @cached_property
    def machine_row(self) -> npt.NDArray[np.int64]:
        """For each row, the first row on the same machine, which stands for what the ranks of the machine share."""
        first: dict[tuple[str, Machine | None], int] = {}
        keys = zip(self.places, self.machines, strict=True)
        return np.array([first.setdefault(key, row) for row, key in enumerate(keys)], dtype=np.int64)

    @cached_property
    def is_same_machine(self) -> npt.NDArray[np.bool_]:
        """The pairs of rows that are on one machine."""
        together: npt.NDArray[np.bool_] = np.equal.outer(self.machine_row, self.machine_row)
        return together

    @cached_property
    def machine_egress_bps(self) -> npt.NDArray[np.float64]:
        """The capacity out of each row's machine; infinite if not limited."""
        return np.array([math.inf if machine is None else machine.egress_bps for machine in self.machines])

    @cached_property
    def machine_ingress_bps(self) -> npt.NDArray[np.float64]:
        """The capacity into each row's machine; infinite if not limited."""
        return np.array([math.inf if machine is None else machine.ingress_bps for machine in self.machines])

    def by_machine(self, carried: Matrix) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """What leaves and what enters each machine, given what rows send each other; in the first row of each."""
        leaving, found = np.where(self.is_same_machine, 0.0, carried), np.zeros((2, len(self)))
        np.add.at(found[0], self.machine_row, leaving.sum(axis=1))
        np.add.at(found[1], self.machine_row, leaving.sum(axis=0))
        return found[0], found[1]

    def between_sites_only(self, carried: Matrix) -> Matrix:
        """What each link between sites carries, given that of each row: in the first row and column of both sites."""
        if not self.shares_sites:
            return carried
        rows, columns = np.broadcast_arrays(self.first_row[:, None], self.first_row[None, :])
        folded = np.zeros_like(carried)
        np.add.at(folded, (rows, columns), np.where(self.is_local, 0.0, carried))
        return folded

    @cached_property
    def shared_bps(self) -> Matrix:
        """What links carry, where those between the ranks of two sites are one: in the first row and column of both.

        That one is there as long as any two of their ranks have a link.
        """
        return self._shared(self.bandwidth_bps)

    def _shared(self, values: Matrix) -> Matrix:
        """The largest of such values of the links between two sites, in the first row and column of both."""
        if not self.shares_sites:
            return values
        between = np.where(self.is_local | (self.bandwidth_bps == 0), 0.0, values)
        folded: Matrix = np.where(self.is_local, values, 0.0)
        np.maximum.at(folded, np.ix_(self.first_row, self.first_row), between)
        return folded

    def site_of(self, name: str) -> str | None:
        """The site of a rank by its name, SITE or SITE/NUMBER; None if there is no such site.

        >>> Network("one", [Site("paris")], [[0]]).site_of("paris/3")
        'paris'
        """
        known = self._known_places
        if name in self.index:
            return self.places[self.index[name]]
        return name if name in known else site if (site := site_named_by(name)) in known else None

    def sites_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """The sites of these rows, each once, in their order."""
        return tuple(dict.fromkeys(self.places[self.index[name]] for name in names))

    @cached_property
    def _known_places(self) -> frozenset[str]:
        return frozenset(self.places)

    @cached_property
    def rank_names(self) -> tuple[str, ...]:
        """The names of all ranks: SITE where a site has one, else SITE/0, SITE/1, ...; site by site."""
        return tuple(name for site in self.sites for name in _ranks_of(site))

    def with_ranks(self, names: Sequence[str] | None = None) -> Network:
        """Return the network between these ranks, named SITE or SITE/NUMBER; by default, all that its sites have.

        Rows are in the order of the sites. Raises `UnknownName` for a rank of a site that the network does not have.
        """
        if names is None and all(site.ranks == 1 and not (site.machines and not site.place) for site in self.sites):
            return self
        sites = self.sites_only()
        at: dict[str, list[str]] = {site.name: [] for site in sites.sites}
        for name in sites.rank_names if names is None else names:
            place = sites.site_of(name)
            if place is None:
                raise UnknownName("site", site_named_by(name) or name, sites.names)
            at[place].append(name)
        has_machines = any(site.machines for site in sites.sites)
        if not has_machines and all(ranks in ([], [place]) for place, ranks in at.items()):
            used = [place for place in at if at[place]]
            return sites if len(used) == len(sites) else sites.subnetwork(used)
        rows = [(sites.index[place], name) for place, ranks in at.items() for name in sorted(ranks, key=_by_number)]
        grid = np.ix_([row for row, _ in rows], [row for row, _ in rows])
        found = [replace(sites.sites[row], name=name, ranks=1, place=sites.names[row]) for row, name in rows]
        local = np.equal.outer([row for row, _ in rows], [row for row, _ in rows]) & ~np.eye(len(rows), dtype=bool)
        zones = {site.zone for site in found}
        return Network(
            self.name,
            found,
            np.where(local, LOCAL_BPS, sites.bandwidth_bps[grid]),
            sites.latency_s[grid],
            sites.loss[grid],
            (t for t in sites.trunks if {t.src_zone, t.dst_zone} - {ANY_ZONE} <= zones),
            sites.usd_per_gb[grid],
        )

    def with_ranks_each(self, ranks: int) -> Network:
        """Return the network between sites with this many ranks at each of them, and without their machines."""
        sites = self.sites_only()
        return Network(
            sites.name,
            (replace(site, ranks=ranks, machines=()) for site in sites.sites),
            sites.bandwidth_bps,
            sites.latency_s,
            sites.loss,
            sites.trunks,
            sites.usd_per_gb,
        )

    def sites_only(self) -> Network:
        """Return the network between sites: one row for all ranks of a site; the inverse of `with_ranks`."""
        if all(site.place is None for site in self.sites):
            return self
        rows = sorted(set(self.first_row.tolist()))
        counts = np.bincount(self.first_row, minlength=len(self)).tolist()
        grid = np.ix_(rows, rows)
        return Network(
            self.name,
            [replace(self.sites[row], name=self.places[row], place=None, ranks=counts[row]) for row in rows],
            self.shared_bps[grid],
            self._shared(self.latency_s)[grid],
            self._shared(self.loss)[grid],
            self.trunks,
            self.usd_per_gb[grid],
        )

    # --- derived networks ----------------------------------------------------------------------------

    def subnetwork(self, names: Sequence[str], name: str | None = None) -> Network:
        """Return the network of only these sites, in the given order, with the links among them."""
        rows = [self.index[self.site(s).name] for s in names]
        grid = np.ix_(rows, rows)
        zones = {self.sites[i].zone for i in rows}
        kept = (t for t in self.trunks if {t.src_zone, t.dst_zone} - {ANY_ZONE} <= zones)
        return Network(
            name or self.name,
            (self.sites[i] for i in rows),
            self.bandwidth_bps[grid],
            self.latency_s[grid],
            self.loss[grid],
            kept,
            self.usd_per_gb[grid],
        )

    def symmetric(self) -> Network:
        """Return the undirected network that MTREE plans on: per pair the lower bandwidth, higher latency and loss.

        A link that exists in one direction only is left out.
        """
        both = (self.bandwidth_bps > 0) & (self.bandwidth_bps.T > 0)
        capacity: dict[tuple[str, str], float] = {}
        for t in self.trunks:
            key = (min(t.src_zone, t.dst_zone), max(t.src_zone, t.dst_zone))
            capacity[key] = min(t.capacity_bps, capacity.get(key, math.inf))
        trunks = [
            Trunk(f"{src}-{dst}", src, dst, bps) for (a, b), bps in capacity.items() for src, dst in ((a, b), (b, a))
        ]
        return Network(
            self.name,
            (s.with_capacities(lambda out_bps, in_bps: (min(out_bps, in_bps),) * 2) for s in self.sites),
            np.where(both, np.minimum(self.bandwidth_bps, self.bandwidth_bps.T), 0.0),
            np.maximum(self.latency_s, self.latency_s.T),
            np.maximum(self.loss, self.loss.T),
            trunks,
            self.usd_per_gb,
        )

    def reversed(self) -> Network:
        """Return the network with all links, NICs and trunks turned around."""
        return Network(
            self.name,
            (s.with_capacities(lambda out_bps, in_bps: (in_bps, out_bps)) for s in self.sites),
            self.bandwidth_bps.T,
            self.latency_s.T,
            self.loss.T,
            (replace(t, src_zone=t.dst_zone, dst_zone=t.src_zone) for t in self.trunks),
            self.usd_per_gb.T,
        )

    def with_bandwidth(self, bandwidth_bps: npt.ArrayLike) -> Network:
        """Return the same network with other link bandwidths."""
        return Network(self.name, self.sites, bandwidth_bps, self.latency_s, self.loss, self.trunks, self.usd_per_gb)

    def with_prices(self, usd_per_gb: npt.ArrayLike) -> Network:
        """Return the same network with other prices of egress."""
        return Network(self.name, self.sites, self.bandwidth_bps, self.latency_s, self.loss, self.trunks, usd_per_gb)

    def egress_usd(self, link_bytes: npt.NDArray[np.float64]) -> float:
        """The price of bytes that are sent over each link, in US dollars."""
        return float((link_bytes * self.usd_per_gb).sum() / 1e9)

    def scaled(self, factor: float) -> Network:
        """Return the network with every capacity multiplied by `factor`, for example to emulate it on one machine."""
        if not (math.isfinite(factor) and factor > 0):
            raise BadNetwork(f"network {self.name!r}: the scale factor must be finite and > 0, got {factor}.")
        return Network(
            self.name,
            (s.with_capacities(lambda out_bps, in_bps: (out_bps * factor, in_bps * factor)) for s in self.sites),
            self.bandwidth_bps * factor,
            self.latency_s,
            self.loss,
            (replace(t, capacity_bps=t.capacity_bps * factor) for t in self.trunks),
            self.usd_per_gb,
        )

    def __repr__(self) -> str:
        return f"Network({self.name!r}, {len(self)} sites, {self.link_count} links, {len(self.trunks)} trunks)"


def site_named_by(name: str) -> str | None:
    """The site in the name of one of its ranks; None if the name is not of this form.

    >>> site_named_by("paris/3"), site_named_by("paris")
    ('paris', None)
    """
    site, separator, number = name.rpartition(RANK_SEPARATOR)
    return site if separator and site and number.isascii() and number.isdecimal() else None


def rank_name(site: str, number: int) -> str:
    """The name of one of several ranks of a site, counted from 0.

    >>> rank_name("paris", 3)
    'paris/3'
    """
    return f"{site}{RANK_SEPARATOR}{number}"


def _ranks_of(site: Site) -> tuple[str, ...]:
    return (site.name,) if site.ranks == 1 else tuple(rank_name(site.name, number) for number in range(site.ranks))


def _by_number(name: str) -> tuple[int, str]:
    number = name.rpartition(RANK_SEPARATOR)[2] if site_named_by(name) else "0"
    return int(number), name


def _check_sites(name: str, sites: tuple[Site, ...]) -> None:
    if not isinstance(name, str) or not name:
        raise BadNetwork(f"the name of a network must be a string that is not empty, got {name!r}.")
    if not sites:
        raise BadNetwork(f"network {name!r} has no sites; it needs at least one.")
    if len(sites) > MAX_SITES:
        raise BadNetwork(f"network {name!r} has {len(sites)} sites; Tradewind handles up to {MAX_SITES}.")
    seen: set[str] = set()
    for site in sites:
        if not site.name or site.name != site.name.strip():
            raise BadNetwork(f"network {name!r}: {site.name!r} is not a valid site name (empty, or spaces around it).")
        if site.name in seen:
            raise BadNetwork(f"network {name!r}: site {site.name!r} is given twice. Remove or rename one.")
        seen.add(site.name)
        if site.zone in ("", ANY_ZONE):
            raise BadNetwork(f"network {name!r}: site {site.name!r} has zone {site.zone!r}, a reserved name.")
        if not (isinstance(site.ranks, int) and 1 <= site.ranks <= MAX_RANKS):
            raise BadNetwork(
                f"network {name!r}: site {site.name!r} has {site.ranks} ranks; expected a number from 1 to {MAX_RANKS}."
            )
        _check_caps(name, f"site {site.name!r}", site)
        _check_machines(name, site)
        for what, degrees, limit in (("lat", site.lat, 90), ("lon", site.lon, 360)):
            if degrees is not None and not abs(degrees) <= limit:
                raise BadNetwork(
                    f"network {name!r}: site {site.name!r} has {what} {degrees:g}, must be in [-{limit}, {limit}]."
                )
        if (site.lat is None) != (site.lon is None):
            raise BadNetwork(f"network {name!r}: site {site.name!r} has only one of lat and lon. Give both or none.")


def _check_caps(name: str, what: str, of: Site | Machine) -> None:
    for way, cap in (("egress", of.egress_bps), ("ingress", of.ingress_bps)):
        if not cap > 0:  # also refuses NaN; infinity means uncapped
            raise BadNetwork(f"network {name!r}: {what} has {way} {cap:g} bit/s; it must be above zero.")


def _check_machines(name: str, site: Site) -> None:
    seen: set[str] = set()
    for machine in site.machines:
        what = f"machine {machine.name!r} of site {site.name!r}"
        if not machine.name or machine.name in seen:
            raise BadNetwork(f"network {name!r}: {what} needs a name that no other machine of the site has.")
        seen.add(machine.name)
        if not (isinstance(machine.ranks, int) and 1 <= machine.ranks <= MAX_RANKS):
            raise BadNetwork(
                f"network {name!r}: {what} has {machine.ranks} ranks; expected a number from 1 to {MAX_RANKS}."
            )
        _check_caps(name, what, machine)


def _together(caps_bps: Iterable[float]) -> float:
    """What NICs carry together; infinite if there are none."""
    return sum(caps_bps) or math.inf


def _check_links(name: str, sites: tuple[Site, ...], bandwidth: Matrix, latency: Matrix, loss: Matrix) -> None:
    for what, matrix, bad, rule in (
        (
            "bandwidth",
            bandwidth,
            ~np.isfinite(bandwidth) | (bandwidth < 0),
            "finite and not negative (0: no link)",
        ),
        ("latency", latency, ~np.isfinite(latency) | (latency < 0), "finite and not negative"),
        ("loss", loss, ~np.isfinite(loss) | (loss < 0) | (loss >= 1), "at least 0 and below 1"),
    ):
        np.fill_diagonal(bad, False)
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise BadNetwork(
                f"network {name!r}: link {sites[i].name}->{sites[j].name} has {what} {matrix[i, j]:g}; "
                f"it must be {rule}."
            )
    looped = np.flatnonzero(np.diagonal(bandwidth))
    if len(looped):
        raise BadNetwork(f"network {name!r}: {sites[looped[0]].name!r} has a link to itself. Remove it.")


def _check_trunks(name: str, sites: tuple[Site, ...], trunks: tuple[Trunk, ...]) -> None:
    zones = {site.zone for site in sites}
    seen: set[str] = set()
    for trunk in trunks:
        if trunk.name in seen:
            raise BadNetwork(f"network {name!r}: trunk {trunk.name!r} is given twice. Remove or rename one.")
        seen.add(trunk.name)
        if not (math.isfinite(trunk.capacity_bps) and trunk.capacity_bps > 0):
            raise BadNetwork(
                f"network {name!r}: trunk {trunk.name!r} has capacity {trunk.capacity_bps:g} bit/s; "
                "it must be a finite number above zero."
            )
        for zone in (trunk.src_zone, trunk.dst_zone):
            if zone != ANY_ZONE and zone not in zones:
                raise BadNetwork(
                    f"network {name!r}: trunk {trunk.name!r} names zone {zone!r}, which has no site. "
                    "Use the zone of a site."
                )
        if trunk.src_zone == trunk.dst_zone:
            raise BadNetwork(
                f"network {name!r}: trunk {trunk.name!r} must connect two zones, got {trunk.src_zone!r} twice."
            )
