"""Collectives: what each one must deliver, as demands of a source for some targets.

Every collective but the all-reduce is a set of demands: a share of the tensor that one site has and some sites need.

| collective | demands | shards of a plan |
|---|---|---|
| `broadcast` | the root's array, to all others | broadcast trees from the root |
| `all-gather` | each member's part, to all others | broadcast trees from the part's owner |
| `reduce` | the reverse of `broadcast` | reduce trees towards the root |
| `reduce-scatter` | the reverse of `all-gather` | reduce trees towards the part's owner |
| `gather` | each member's part, to the root | one route from the owner to the root |
| `scatter` | a part of the root's array, to each member | one route from the root to the owner |
| `all-to-all` | a part of each member's array, to each other | one route from one to the other |

The tensor is the largest array of a rank: the input of a `reduce-scatter` and of an `all-to-all`, the root's input of a
`scatter`, the result of an `all-gather`, the root's result of a `gather`. Parts are equal shares of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tradewind.errors import BadOption

Kind = Literal["all-reduce", "broadcast", "reduce", "all-gather", "reduce-scatter", "gather", "scatter", "all-to-all"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ROOTED = ("broadcast", "reduce", "gather", "scatter")
_SUMMED = ("all-reduce", "reduce", "reduce-scatter")
_ROUTED = ("gather", "scatter", "all-to-all")
_PARTED = ("all-gather", "reduce-scatter", "gather", "scatter", "all-to-all")


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective, with the site that it starts or ends at where there is one.

    >>> str(Collective("broadcast", "tokyo")), Collective.parse("all-gather").is_rooted
    ('broadcast:tokyo', False)
    """

    kind: Kind = "all-reduce"
    root: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadOption(f"unknown collective {self.kind!r}; expected one of {', '.join(KINDS)}.")
        if bool(self.root) != self.is_rooted:
            expected = f"a root, as in {self.kind}:SITE" if self.is_rooted else "no root"
            raise BadOption(f"the collective {self.kind!r} needs {expected}, got {self.root!r}.")

    def __str__(self) -> str:
        return f"{self.kind}:{self.root}" if self.root else self.kind

    @classmethod
    def parse(cls, text: str, default_root: str = "") -> Collective:
        """The collective of a text `KIND` or `KIND:ROOT`; a rooted kind without a root gets `default_root`."""
        kind, _, root = text.partition(":")
        known: dict[str, Kind] = {name: name for name in KINDS}
        if kind not in known:
            raise BadOption(f"unknown collective {kind!r}; expected one of {', '.join(KINDS)}.")
        return cls(known[kind], root or (default_root if kind in ROOTED else ""))

    @property
    def is_rooted(self) -> bool:
        """Whether one site is the source or the receiver of everything."""
        return self.kind in ROOTED

    @property
    def is_summed(self) -> bool:
        """Whether contributions are combined; otherwise bytes are copied."""
        return self.kind in _SUMMED

    @property
    def is_routed(self) -> bool:
        """Whether each shard is one route between two members instead of a tree."""
        return self.kind in _ROUTED

    @property
    def is_parted(self) -> bool:
        """Whether the tensor consists of a part for each member."""
        return self.kind in _PARTED

    @property
    def is_equal_everywhere(self) -> bool:
        """Whether all members get the same result."""
        return self.kind in ("all-reduce", "broadcast", "all-gather")

    def needs(self, member: str) -> bool:
        """Whether it fails without this member: all of it if that is the root, or a part of it that only it has."""
        return self.is_parted or self.root == member

    @property
    def is_mirrored(self) -> bool:
        """Whether it is planned as its reverse, on the network with all links turned around."""
        return self.kind in ("reduce", "reduce-scatter")

    @property
    def mirror(self) -> Collective:
        """The reverse of a `reduce` or `reduce-scatter`: the collective that copies instead of combining."""
        return Collective("broadcast" if self.kind == "reduce" else "all-gather", self.root)


ALL_REDUCE = Collective()


@dataclass(frozen=True, slots=True)
class Demand:
    """A share of the tensor that `source` has and all `targets` need."""

    source: str
    targets: tuple[str, ...]
    share: float
    key: tuple[str, str]
    """The source, and the target of a route: what tells the demands of a collective apart."""


def demands_of(collective: Collective, members: tuple[str, ...]) -> tuple[Demand, ...]:
    """The demands of a collective; those of its mirror where it is mirrored. An all-reduce has none.

    >>> demands_of(Collective("gather", "a"), ("a", "b"))
    (Demand(source='b', targets=('a',), share=0.5, key=('b', 'a')),)
    """
    part, root = 1.0 / len(members), collective.root
    others = {name: tuple(other for other in members if other != name) for name in members}
    if collective.is_rooted and root not in others:
        raise BadOption(f"the root of {collective} must be a member, expected one of {', '.join(members)}.")
    match collective.kind:
        case "broadcast" | "reduce":
            return (Demand(root, others[root], 1.0, (root, "")),)
        case "all-gather" | "reduce-scatter":
            return tuple(Demand(name, others[name], part, (name, "")) for name in members)
        case "gather":
            routed = [(name, root) for name in others[root]]
        case "scatter":
            routed = [(root, name) for name in others[root]]
        case "all-to-all":
            routed = [(name, other) for name in members for other in others[name]]
        case "all-reduce":
            return ()
    return tuple(Demand(source, (target,), part, (source, target)) for source, target in routed)


def demand_key(collective: Collective, source: str, end: str) -> tuple[str, str]:
    """The key of the demand that a shard of `source`, whose first route ends at `end`, serves."""
    return source, end if collective.is_routed else ""
