"""Arguments that several verbs share, each with one name and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NetworkArgument = Annotated[
    str, typer.Argument(metavar="NETWORK", help="A name from `tradewind networks`, or a file: JSON, CSV, GraphML, GML.")
]
MembersOption = Annotated[
    str | None, typer.Option("--members", metavar="A,B,...", help="Sites that synchronise; all by default.")
]
BytesOption = Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Size of the tensor: 180MB, 64KiB, 1.5GB.")]
CollectiveOption = Annotated[
    str,
    typer.Option(
        "--collective",
        metavar="KIND[:SITE]",
        help="all-reduce, all-gather, reduce-scatter, all-to-all; broadcast, reduce, gather, scatter with their root, "
        "the first member by default.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (keys: docs/reference/cli.md).")]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Seed of a catalog network that is drawn at random.")
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of a catalog network; may be repeated."),
]
LatencyOption = Annotated[
    Path | None, typer.Option("--latency", metavar="FILE", help="One-way latency matrix beside a CSV bandwidth matrix.")
]
DefaultBandwidthOption = Annotated[
    str | None,
    typer.Option("--default-bandwidth", metavar="RATE", help="Bandwidth of links for which a graph file gives none."),
]
PricesOption = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="Prices of egress: CSV of src,dst,usd_per_gb; * means all sites."),
]

RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks-per-site", min=1, metavar="N", help="Ranks of every site; default: as the network says, or 1."
    ),
]
CODEC_HELP = "bf16, fp16, int8, fp8, int4, int4-32, topk (-32, -128, -256)"
CodecOption = Annotated[
    str,
    typer.Option("--codec", metavar="NAME", help=f"Encode float32: {CODEC_HELP}; auto where it pays."),
]

DEFAULT_BYTES = "100MB"
