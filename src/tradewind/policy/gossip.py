"""Gossip: pairs of ranks on a graph that changes each step."""

from __future__ import annotations

from tradewind.errors import InternalError
from tradewind.network import Network
from tradewind.policy.follow import Follower
from tradewind.policy.patterns import Pattern, PatternGroup, Step
from tradewind.registry import NoOptions


class Gossip(Follower):
    """Pairs of ranks average, at twice the distance each step (dynamic exponential graph).

    DS-Sync's gossip baseline. Ranks get random numbers, since gossip does not use the network; at step t, number i
    averages with number i xor 2^t. That is the exponential graph with exchanges in both directions, so that a step is
    a matching and needs no push-sum weights: log2(n) steps average exactly if n is a power of two. A rank without a
    partner in a step continues training.

    Mechanism: DS-Sync II-B, gossip for comparison (live: tradewind/stragglers)
    """

    name = "gossip"

    def __init__(
        self,
        network: Network,
        workers: tuple[str, ...],
        options: NoOptions,  # noqa: ARG002  (it has no options)
        *,
        seed: int,
        now_s: float,
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.begin_epoch()

    def make_pattern(self, workers: tuple[str, ...]) -> Pattern:
        """Pair the ranks by random numbers."""
        shuffled = [workers[i] for i in self.random.permutation(len(workers))]
        distances = [1 << t for t in range((len(shuffled) - 1).bit_length())]
        pattern = Pattern.prove(_pairs_at(shuffled, distance) for distance in distances)
        if pattern is None:
            raise InternalError(f"pairs at distances {distances} of {len(shuffled)} ranks do not mix.")
        return pattern


def _pairs_at(shuffled: list[str], distance: int) -> Step:
    groups = []
    for i, worker in enumerate(shuffled):
        other = i ^ distance
        if other >= len(shuffled):
            groups.append(PatternGroup((worker,), "pair"))
        elif i < other:
            groups.append(PatternGroup(tuple(sorted((worker, shuffled[other]))), "pair"))
    return tuple(groups)
