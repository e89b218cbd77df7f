"""Gossip: pairs on a graph that changes each step."""

from __future__ import annotations

from tradewind.errors import InternalError
from tradewind.network import Network
from tradewind.policy.follow import Follower
from tradewind.policy.patterns import Pattern, PatternGroup, Step
from tradewind.registry import NoOptions


class Gossip(Follower):
    """Pairs average, at twice the distance each step (dynamic exponential graph).

    DS-Sync's gossip baseline. Workers are dealt numbers at random, as gossip knows nothing of the network; at step t,
    worker i meets worker i xor 2^t. That is the exponential graph with exchanges both ways, so that a step is a
    matching and needs no push-sum weights: log2(n) steps average exactly where n is a power of two. Whoever has no
    partner in a step trains on.
    """

    name = "gossip"

    def __init__(
        self,
        network: Network,
        workers: tuple[str, ...],
        options: NoOptions,  # noqa: ARG002  (there is nothing to choose)
        *,
        seed: int,
        now_s: float,
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.begin_epoch()

    def make_pattern(self, workers: tuple[str, ...]) -> Pattern:
        """Deal the numbers and pair."""
        dealt = [workers[i] for i in self.random.permutation(len(workers))]
        distances = [1 << t for t in range((len(dealt) - 1).bit_length())]
        pattern = Pattern.prove(_pairs_at(dealt, distance) for distance in distances)
        if pattern is None:
            raise InternalError(f"pairs at distances {distances} of {len(dealt)} workers do not mix.")
        return pattern


def _pairs_at(dealt: list[str], distance: int) -> Step:
    groups = []
    for i, worker in enumerate(dealt):
        other = i ^ distance
        if other >= len(dealt):
            groups.append(PatternGroup((worker,), "pair"))
        elif i < other:
            groups.append(PatternGroup(tuple(sorted((worker, dealt[other]))), "pair"))
    return tuple(groups)
