"""Claims of the five papers that no experiment here judges, and why not.

A claim that gets an experiment leaves this list.
"""

from __future__ import annotations

UNJUDGED: dict[str, tuple[tuple[str, str], ...]] = {
    "mtree": (),
    "crew": (),
    "selective": (
        (
            "Fig. 2: larger groups need fewer synchronisations and iterations to converge.",
            "The paper quotes it from P-Reduce; crew/fig3 trains with different group sizes instead.",
        ),
    ),
    "ds-sync": (
        (
            "Fig. 3: all-reduce takes longer with more workers, for all models.",
            "A testbed's number; the formulas of Table I are those of Table II without racks.",
        ),
        (
            "Figs. 7 to 9, Tables III to V: DS-Sync reaches the accuracy of BSP in a similar number of iterations, up "
            "to 94% sooner.",
            "It takes training on the paper's models and data sets. Its communication times are judged here, and what "
            "it gains with a slow site, on digits, in tradewind/stragglers.",
        ),
        (
            "The final SWA ensemble generalises slightly better on small data sets.",
            "It takes training on the paper's models and data sets.",
        ),
    ),
    "netstorm": (
        (
            "Fig. 19(a): AlexNet trains faster than ResNet-152 of the same size, as its large tensors are sliced more "
            "evenly.",
            "Tradewind slices the whole model, not tensor by tensor, so the effect is gone by design.",
        ),
    ),
    "tradewind": (),
}
