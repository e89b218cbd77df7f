"""DS-Sync's Figure 3: the time of an all-reduce by the number of workers, on an ideal network."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.ds_sync.tables import MODELS
from tradewind.experiments.papers.report import Claim, Outcome, verdict_of
from tradewind.figures.chart import Panel, Series
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST

WORKERS = (2, 4, 8, 16, 32)
NIC_BPS, LATENCY_S = 20e9, 50e-6
CLAIMS = ("All-reduce takes longer with more workers, for all models, also in an ideal and uniform network.",)


def ring_seconds(workers: int, nbytes: int) -> float:
    """The time of a ring all-reduce between equal workers behind a non-blocking switch."""
    sites = [Site(f"w{i:02d}", egress_bps=NIC_BPS, ingress_bps=NIC_BPS) for i in range(workers)]
    other = 1 - np.eye(workers)
    network = Network(f"{workers} workers", sites, NIC_BPS * other, LATENCY_S * other)
    return cost(make_plan("ring", network, nbytes), network, host=FREE_HOST).seconds


def _run(setting: Setting) -> Outcome:
    calls = [(n, model.nbytes) for model in MODELS for n in WORKERS]
    found = dict(zip(calls, setting.workers.map(ring_seconds, calls, "ds-sync/fig3"), strict=True))
    curves = {model.dataset: [found[n, model.nbytes] for n in WORKERS] for model in MODELS}
    x = tuple(map(float, WORKERS))
    series = tuple(Series(name, x, tuple(y / max(ys) for y in ys)) for name, ys in curves.items())
    grows = [after > before for ys in curves.values() for before, after in pairwise(ys)]
    return Outcome(
        columns=("data set", *(f"{n} workers, s" for n in WORKERS)),
        rows=tuple((name, *ys) for name, ys in curves.items()),
        panels=(Panel("ring", "workers", "time, over the longest", series),),
        claims=(
            Claim(
                CLAIMS[0],
                "; ".join(f"{name}: {ys[-1] / ys[0]:.2f} times from 2 to 32 workers" for name, ys in curves.items()),
                verdict_of(grows),
                "A ring sends 2(n - 1)/n of the model: from 1 to nearly 2 times, and latency beside.",
            ),
        ),
        notes=("NICs of 20 Gbps, latency 50 us. The paper measures a testbed, whose layers are many small messages.",),
    )


FIG3 = Experiment("ds-sync/fig3", "DS-Sync Fig. 3: all-reduce by number of workers", CLAIMS, _run)
