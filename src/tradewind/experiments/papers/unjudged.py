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
            "Figs. 7 to 9, Tables III to V: the accuracies themselves (92.6%, 76.8%, 76.4%, F1 92.7).",
            "They need WideResNet-28-10, WideResNet-50-2 and BERT-large, Cifar10, Cifar100, ImageNet and SQuAD, which "
            "no Debian package has, and eight GPUs. What they show, that DS-Sync keeps BSP's accuracy and iterations "
            "and ASP does not, is judged with another model and data set (ds-sync/fig7 to fig9).",
        ),
    ),
    "netstorm": (),
    "tradewind": (),
}
