"""The command line: `tradewind VERB`, one file per verb.

Every verb follows the same rules. Data goes to stdout, progress and diagnostics to stderr. `--json` gives data that
programs read, with the keys of docs/reference/cli.md. The exit code is 0 for success, 1 for a failure, 2 for bad usage
or input, 3 for a problem that has no solution. Verbs import what they need when they run, so that `--help` is instant.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tradewind.cli import (
    advise,
    bench,
    certs,
    check,
    compare,
    config,
    controller,
    demo,
    doctor,
    draw,
    lab,
    network,
    networks,
    pareto,
    plan,
    planners,
    policies,
    probe,
    replay,
    reproduce,
    schemes,
    secret,
    simulate,
    timeline,
    top,
    watch,
)
from tradewind.cli.guard import guarded, set_debug
from tradewind.cli.planner_flags import PlannerFlagsCommand
from tradewind.cli.verbs import HELP_FLAGS, VerbCommand, VerbGroup

EXIT_CODES = "Exit codes: 0 ok, 1 failed, 2 bad usage or input, 3 impossible problem."

app = typer.Typer(
    name="tradewind",
    cls=VerbGroup,
    help="Plan how one model is synchronised across data centers, clouds and racks, and compare the plans.",
    epilog=f"Example: tradewind compare gscale --bytes 1GB.  {EXIT_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_FLAGS,
)

for _name, _module in (
    ("networks", networks),
    ("network", network),
    ("planners", planners),
    ("policies", policies),
    ("schemes", schemes),
    ("plan", plan),
    ("pareto", pareto),
    ("advise", advise),
    ("check", check),
    ("compare", compare),
    ("draw", draw),
    ("simulate", simulate),
    ("timeline", timeline),
    ("watch", watch),
    ("top", top),
    ("replay", replay),
    ("reproduce", reproduce),
    ("config", config),
    ("secret", secret),
    ("controller", controller),
    ("probe", probe),
    ("doctor", doctor),
    ("bench", bench),
    ("demo", demo),
):
    _paragraphs = (_module.run.__doc__ or "").split("\n\n")
    app.command(
        _name,
        cls=PlannerFlagsCommand if _module is plan else VerbCommand,
        help="\n\n".join(" ".join(paragraph.split()) for paragraph in _paragraphs),
        epilog=f"Example: {_module.EXAMPLE}",
        context_settings=HELP_FLAGS,
    )(guarded(_module.run))

app.add_typer(lab.app, name="lab")
app.add_typer(certs.app, name="certs")


def _print_version(wanted: bool) -> None:
    if wanted:
        from tradewind import __version__

        typer.echo(f"tradewind {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="TRADEWIND_DEBUG", help="Show the traceback of unexpected errors.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    set_debug(debug)


def main() -> None:
    """Run the `tradewind` command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # replace characters that the terminal cannot show, rather than fail
            reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe; keep the interpreter from flushing to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
