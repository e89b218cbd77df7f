"""The weights of the members' models in an average."""

from __future__ import annotations

from collections.abc import Sequence


def uniform_weights(count: int) -> tuple[float, ...]:
    """Equal weights for `count` members.

    >>> uniform_weights(4)
    (0.25, 0.25, 0.25, 0.25)
    """
    return (1.0 / count,) * count


def scaled_weights(weights: Sequence[float], given: Sequence[float]) -> tuple[float, ...]:
    """Weights in proportion to their product with the weights that members gave, such as tokens processed.

    >>> scaled_weights((0.5, 0.5), (300.0, 100.0))
    (0.75, 0.25)
    """
    if len(set(given)) == 1:
        return tuple(weights)
    products = [weight * own for weight, own in zip(weights, given, strict=True)]
    total = sum(products)
    return tuple(product / total for product in products)


def staleness_weights(progress: Sequence[int]) -> tuple[float, ...]:
    """Weights in which a model that is s steps behind the most advanced one counts 1/(1 + s) as much.

    A straggler's model lacks the last s steps of the others and would pull the average back; but it contains gradients
    that no other model has, so it must count. This is the rule of DynSGD (heterogeneity-aware parameter servers), which
    Selective Reduce II-C names for its weighted all-reduce; partial reduce uses the same relative iteration counts.

    >>> staleness_weights([7, 7, 6])
    (0.4, 0.4, 0.2)

    Mechanism: Selective Reduce II-C, weights by staleness
    """
    newest = max(progress)
    shares = [1.0 / (1 + newest - own) for own in progress]
    total = sum(shares)
    return tuple(share / total for share in shares)
