"""`tradewind top ADDRESS|TRACE...`: the state of a run in a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from rich.console import RenderableType

EXAMPLE = "tradewind top localhost:8080"

FIXED_LINES = 16
"""Lines that are not rows of the tables of ranks and links."""


def run(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="ADDRESS|TRACE...", help="HOST:PORT of a run with dashboard=, or traces."),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the present state and end.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Time between updates.")] = "1s",
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="TRADEWIND_DASHBOARD_TOKEN", metavar="TOKEN", help="Token of a live run."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show ranks, links and events of a run in the terminal, until Ctrl-C or the run's end.

    Without a terminal, and of a trace, the state is printed once.
    """
    from rich.live import Live

    from tradewind.cli.output import console, print_json
    from tradewind.dashboard.sources import fetch_view, is_address, load_model
    from tradewind.errors import InputError
    from tradewind.units import parse_duration

    live = len(sources) == 1 and is_address(sources[0])
    view = fetch_view(sources[0], token) if live else load_model([Path(source) for source in sources]).view()
    every_s, out = parse_duration(every), console()
    if json:
        print_json(view)
        return
    if once or not live or not out.is_terminal:
        out.print(screen(view, 40))
        return
    with Live(screen(view, _rows(out.height)), console=out, screen=True, auto_refresh=False) as shown:
        try:
            while True:
                time.sleep(every_s)
                view = fetch_view(sources[0], token)
                shown.update(screen(view, _rows(out.height)), refresh=True)
        except (KeyboardInterrupt, InputError):
            pass
    out.print(screen(view, 40))


def _rows(height: int) -> int:
    return max(3, (height - FIXED_LINES) // 2)


def screen(view: dict[str, Any], rows: int) -> RenderableType:
    """The view as text, with at most `rows` ranks and links."""
    from rich.console import Group
    from rich.text import Text

    from tradewind.cli.output import table
    from tradewind.units import format_duration, format_rate, format_size

    def duration(seconds: float | None) -> str:
        return "-" if seconds is None else format_duration(seconds)

    def state(site: dict[str, Any]) -> str:
        down_at_s = site["down_at_s"]
        return "present" if down_at_s is None else f"lost for {duration(max(0.0, view['now_s'] - down_at_s))}"

    title, up = view["title"], sum(site["down_at_s"] is None for site in view["sites"])
    last = view["rounds"][-1] if view["rounds"] else None
    said = " · ".join(part for part in (title["network"], title["scheme"], title["about"]) if part)
    facts = [
        f"{up} of {len(view['sites'])} ranks",
        f"{view['rounds_finished']} rounds",
        f"mean {duration(view['round_mean_s'])}",
        f"last {duration(last and last['end_s'] - last['start_s'])}",
        f"predicted {duration(last and last['predicted_s'])}",
        f"egress {format_size(view['egress_bytes']) if view['egress_bytes'] else '0 B'}",
    ]
    if view["egress_cost"] is not None:
        facts.append(f"${view['egress_cost']:.2f}")
    if view["forecast"] is not None:
        facts.append(_forecast(view["forecast"]))
    ranks = table("rank", "state", ">waited for", ">compute", ">wait", ">sync", ">load", title="Ranks")
    for site in sorted(
        view["sites"], key=lambda site: (site["down_at_s"] is None, -site["waited_for_s"], site["name"])
    )[:rows]:
        load = "-" if site["load"] is None else f"{site['load']:.0%}"
        spent = (duration(site[key]) for key in ("waited_for_s", "compute_s", "wait_s", "sync_s"))
        ranks.add_row(site["name"], state(site), *spent, load)
    links = table("link", ">rate", ">limit", ">used", ">carried", ">resent", title="Links by use")
    carried = [link for link in view["links"] if link["bytes"] or link["down"]]
    for link in sorted(carried, key=lambda link: (-_used(link), link["src"], link["dst"]))[:rows]:
        limit_bps = link["limit_bps"]
        links.add_row(
            f"{link['src']} -> {link['dst']}{' (down)' if link['down'] else ''}",
            format_rate(link["rate_bps"]) if link["rate_bps"] else "0",
            format_rate(limit_bps) if limit_bps else "-",
            f"{_used(link):.0%}" if limit_bps else "-",
            format_size(link["bytes"]) if link["bytes"] else "0",
            str(link["retransmits"] or ""),
        )
    events = [
        Text(f"{format_duration(event['at_s']):>8}  {event['what']} {event['about']}: {event['reason']}", no_wrap=True)
        for event in view["events"][-5:]
    ]
    parts: list[Text] = [Text(said, style="bold"), Text(" · ".join(facts)), Text(view["summary"])]
    if view["diagnosis"]:
        parts.append(Text(view["diagnosis"], style="red"))
    return Group(*parts, ranks, links, *events)


def _forecast(forecast: dict[str, Any]) -> str:
    from tradewind.units import format_duration, format_size

    egress = format_size(forecast["egress_bytes"]) if forecast["egress_bytes"] else "0 B"
    price = "" if forecast["egress_cost"] is None else f" for ${forecast['egress_cost']:.2f}"
    return f"at the end, in {format_duration(forecast['remaining_s'])}: {forecast['rounds']} rounds, {egress}{price}"


def _used(link: dict[str, Any]) -> float:
    return float(link["rate_bps"] / link["limit_bps"]) if link["limit_bps"] else 0.0
