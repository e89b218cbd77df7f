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
            "Figs. 7 to 9, Tables III to V: the accuracies of WideResNet-28-10, WideResNet-50-2 and BERT-large.",
            "They need Cifar10, Cifar100, ImageNet and SQuAD, which no Debian package has, and eight GPUs. "
            "That DS-Sync reaches BSP's accuracy, and how soon, is judged on digits (ds-sync/training, "
            "tradewind/stragglers); tradewind/alexnet, resnet and gpt do so with more data.",
        ),
        (
            "The final SWA ensemble generalises slightly better on small data sets.",
            "The differences, below a percent, need the paper's models, data sets and GPUs.",
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
