"""`tradewind demo`: train one model at the sites of a real network, emulated on this machine, and compare plans."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.experiments.demo.site import Data
    from tradewind.network import Network

EXAMPLE = "tradewind demo --network ec2-hotcloud18 --sites Virginia,Ireland,Tokyo"

DEFAULT_NETWORK = "skyplane"
DEFAULT_SITES = (
    "aws:us-east-1",
    "azure:westus",
    "gcp:us-central1-a",
    "aws:eu-central-1",
    "azure:uksouth",
    "gcp:asia-northeast2-a",
    "azure:eastasia",
    "aws:ap-southeast-1",
)
"""Three clouds on three continents, in the order of a sensible ring."""


def run(
    network: Annotated[
        str, typer.Option("--network", metavar="NETWORK", help="A name from `tradewind networks`, or a file.")
    ] = DEFAULT_NETWORK,
    sites: Annotated[
        str | None, typer.Option("--sites", metavar="N|A,B,...", help="The first N sites, or these; 8 by default.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Training steps over each scheme.")] = 8,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the model and the batches.")] = 0,
    plan: Annotated[
        str,
        typer.Option(
            "--plan", metavar="PLANNER|FILE", help="What to compare with star and ring; also FILE.py:FUNCTION."
        ),
    ] = "auto",
    scale: Annotated[
        float | None,
        typer.Option("--scale", metavar="X", help="Factor on all rates; by default what this machine can carry."),
    ] = None,
    numpy: Annotated[bool, typer.Option("--numpy", help="Train in numpy, even where PyTorch is installed.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="Where the report goes.")] = Path(
        "build/demo.html"
    ),
    json: JsonOption = False,
) -> None:
    """Train one model at 8 sites of a network, as 8 processes on this machine, over star, ring and a Tradewind plan.

    Every site is a process that limits the rate of what it sends and delays it as the network's links do; rates are
    scaled down to what this machine can carry. All schemes train with the same seeds, so the losses agree and only the
    time differs. Trains with DDP on the tradewind backend where PyTorch is installed, and with numpy otherwise. Needs
    no root and takes about two minutes.
    """
    from tradewind.cli.output import check_out, console, print_json, write_whole
    from tradewind.cli.progress import progress
    from tradewind.cli.show_demo import LiveSites, show_demo
    from tradewind.experiments.demo.report import as_html, as_json
    from tradewind.experiments.demo.run import bearable_seconds, plan_schemes, run_demo
    from tradewind.figures import ensure_can_draw

    check_out(out, (".html", ".htm"))
    ensure_can_draw()
    chosen, factor = _choose(network, sites, steps, seed, scale)
    data, (train, framework) = _load_data(), _framework(numpy)
    with progress(f"planning for {len(chosen)} sites of {chosen.name}"):
        schemes = plan_schemes(chosen, plan)
    bearable_seconds(schemes, steps)
    with LiveSites(chosen.names, schemes, steps) as live:
        result = run_demo(chosen, factor, schemes, data, train, framework, steps=steps, seed=seed, on_event=live.heard)
    write_whole(out, as_html(result, "tradewind " + " ".join(sys.argv[1:])))
    if json:
        print_json({**as_json(result), "report": str(out)})
        return
    show_demo(result)
    console().print(f"Pictures: {out}")


def _choose(name: str, sites: str | None, steps: int, seed: int, scale: float | None) -> tuple[Network, float]:
    """The network to emulate, scaled, and the scale."""
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.errors import BadOption
    from tradewind.experiments.demo.run import MOST_SITES, MOST_STEPS, choose_scale
    from tradewind.runtime.shape_alone import ensure_separable

    if not 1 <= steps <= MOST_STEPS:
        raise BadOption(f"--steps must be in [1, {MOST_STEPS}], got {steps}.")
    if seed < 0:
        raise BadOption(f"--seed must be >= 0, got {seed}.")
    if scale is not None and not 0 < scale <= 1:
        raise BadOption(f"--scale must be in (0, 1], got {scale}.")
    whole = resolve_network(name)
    if sites is not None and sites.isdecimal():
        names = whole.names[: int(sites)]
        if int(sites) > len(whole):
            raise BadOption(f"--sites must be at most {len(whole)}, the sites of {whole.name!r}, got {sites}.")
    elif sites is not None:
        names = parse_names(sites, "--sites") or ()
    else:
        names = DEFAULT_SITES if name == DEFAULT_NETWORK else whole.names[: len(DEFAULT_SITES)]
    if not 2 <= len(names) <= MOST_SITES:
        raise BadOption(f"--sites: expected 2 to {MOST_SITES} sites, as each is a process, got {len(names)}.")
    chosen = whole.subnetwork(names)
    ensure_separable(chosen)
    factor = choose_scale(chosen) if scale is None else scale
    return chosen.scaled(factor), factor


def _load_data() -> Data:
    import numpy as np

    from tradewind.experiments.demo.site import Data
    from tradewind.experiments.papers.digits import load_digits

    digits = load_digits()
    train, test = digits.train_images.astype(np.float32), digits.test_images.astype(np.float32)
    return Data(train, digits.train_labels, test, digits.test_labels)


def _framework(numpy: bool) -> tuple[Callable[..., Any], str]:
    """The training function that every site calls, and its name for the report."""
    if numpy or importlib.util.find_spec("torch") is None:
        from tradewind.experiments.demo.site import train_with_numpy

        return train_with_numpy, "numpy on tradewind.connect"
    from importlib.metadata import version

    from tradewind.cli.demo_sites import train_with_torch

    return train_with_torch, f"PyTorch {version('torch')} DDP on the tradewind backend"
