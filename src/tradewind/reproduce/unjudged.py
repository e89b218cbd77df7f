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
            "It takes training on the paper's models and data sets. Its communication times are judged here.",
        ),
        (
            "The final SWA ensemble generalises slightly better on small data sets.",
            "It takes training on the paper's models and data sets.",
        ),
    ),
    "netstorm": (
        (
            "Fig. 13: NetStorm trains up to 9.2 times as fast as MXNET in a static and 6.5 times in a dynamic network.",
            "The whole system, with auxiliary paths: for the emulated network, not for the simulator.",
        ),
        (
            "Fig. 17: auxiliary paths raise throughput by 30% to 65%, most with PRIMARY_BUSY_BOUND 2 and "
            "AUXILIARY_QUEUE_LENGTH 5.",
            "The simulator has no auxiliary paths.",
        ),
        (
            "Fig. 18: multi-root FAPT alone is 5.5 times as fast as MXNET, with network awareness another 20% faster, "
            "with auxiliary paths 7.5 times as fast as MXNET.",
            "The steps without auxiliary paths are in Figs. 14 to 16.",
        ),
        (
            "Fig. 19(a): AlexNet trains faster than ResNet-152 of the same size, as its large tensors are sliced more "
            "evenly.",
            "Tradewind slices the whole model, not tensor by tensor, so the effect is gone by design.",
        ),
        (
            "Fig. 20: chunks of 0.5 to 1 million parameters, an update every 5 s and 4 to 32 probe chunks work best.",
            "The prototype's own constants; the simulator's rounds are fluid, without chunks to size.",
        ),
    ),
}
