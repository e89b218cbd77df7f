"""`tradewind watch ADDRESS|TRACE...`: the page of a live run, or of a finished trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tradewind.cli.arguments import JsonOption

EXAMPLE = "tradewind watch traces --port 8080"


def run(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="ADDRESS|TRACE...",
            help="HOST:PORT of a run with dashboard=, or trace files and directories of a run or simulation.",
        ),
    ],
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port of a trace's page.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="F.html", help="Write the page with its data instead of serving it.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="TRADEWIND_DASHBOARD_TOKEN", metavar="TOKEN", help="Token of a live run."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a run as a page: sites and links, rounds, who waited for whom, estimates, plans and events.

    Of a trace, the page is served on loopback until Ctrl-C, or written to a file that a browser opens by itself. Of a
    live run, prints the address of its page, or writes its present state.
    """
    import msgspec

    from tradewind.cli.output import check_out, print_json, write_whole
    from tradewind.dashboard.server import PageServer, RunView, embed
    from tradewind.dashboard.sources import fetch_view, is_address, load_model, page_url

    check_out(out, (".html",))
    live = len(sources) == 1 and is_address(sources[0])
    if live:
        view = fetch_view(sources[0], token)
        data = msgspec.json.encode(view)
    else:
        model = load_model([Path(source) for source in sources])
        view, data = model.view(), b""
    if json:
        print_json(view)
    if out is not None:
        write_whole(out, embed(data or msgspec.json.encode(view)))
        typer.echo(f"wrote {out}", err=True)
    if json or out is not None:
        return
    if live:
        typer.echo(page_url(sources[0], token))
        return
    server = PageServer("127.0.0.1", port, RunView(model))
    typer.echo(server.url)
    typer.echo("serving until Ctrl-C", err=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
