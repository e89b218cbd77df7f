"""`tradewind controller --listen HOST:PORT`: the controller of a run, as a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tradewind.cli.arguments import JsonOption

EXAMPLE = "TRADEWIND_SECRET=... tradewind controller --listen 127.0.0.1:4000 --workers 4 --network gscale"


def run(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where workers connect; port 0: one that is free.")
    ],
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="How many the run has.")],
    network: Annotated[
        str | None, typer.Option("--network", metavar="NETWORK", help="A catalog name or a file; sites are workers.")
    ] = None,
    planner: Annotated[str | None, typer.Option("--planner", metavar="NAME", help="How bytes travel.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="F.json", help="Use this plan, no planner.")] = None,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Who synchronises when.")] = "bsp",
    scatter: Annotated[
        str, typer.Option("--scatter", metavar="HOW", help="blocking, or non-blocking: send before a round is known.")
    ] = "blocking",
    run_name: Annotated[str, typer.Option("--run", metavar="NAME", help="The run's name.")] = "tradewind",
    patience: Annotated[str, typer.Option("--patience", metavar="TIME", help="How long a silence may be.")] = "30s",
    tolerant: Annotated[bool, typer.Option("--tolerant", help="Go on without lost workers, also under bsp.")] = False,
    controllers: Annotated[int, typer.Option("--controllers", metavar="N", help="How many the run has.")] = 1,
    standby: Annotated[int, typer.Option("--standby", metavar="I", help="Be the I-th that stands by.")] = 0,
    ports: Annotated[
        str | None,
        typer.Option("--ports", metavar="A-B", help="Listen on a port of this range, by default TRADEWIND_PORTS."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the controller of a run until it is over, for workers that connect with `embed=False`.

    The run's secret is read from the environment variable TRADEWIND_SECRET.
    """
    from tradewind.cli.output import print_json
    from tradewind.cli.resolve import resolve_network
    from tradewind.control import ControlOptions
    from tradewind.control.deadlines import Deadlines
    from tradewind.control.options import choose_scatter
    from tradewind.errors import BadOption, BadPlan
    from tradewind.planning import planner as look_up_planner
    from tradewind.planning.plan import plan_from_json
    from tradewind.policy import policy as look_up_policy
    from tradewind.runtime.addresses import HostPort, PortRange
    from tradewind.runtime.control_server import ControlServer
    from tradewind.runtime.group import find_secret
    from tradewind.units import parse_duration
    from tradewind.wire.handshake import Credentials

    if workers < 1:
        raise BadOption(f"--workers {workers}: a run has at least one.")
    if not 0 <= standby < controllers:
        last = controllers - 1
        raise BadOption(
            f"--standby {standby} of --controllers {controllers}: the first, which acts, is 0, the last {last}."
        )
    look_up_policy(policy)
    if planner is not None:
        look_up_planner(planner)
    where, secret = HostPort.parse(listen), find_secret(None)
    found = None if network is None else resolve_network(network, None, None, None, None)
    try:
        given = None if plan is None else plan_from_json(plan.read_bytes(), str(plan))
    except OSError as error:
        raise BadPlan(f"cannot read {plan}: {error.strerror}.") from None
    options = ControlOptions(
        workers,
        found,
        given,
        planner,
        policy=policy,
        scatter=choose_scatter(scatter),
        deadlines=Deadlines(parse_duration(patience)),
        tolerant=True if tolerant or controllers > 1 else None,
        controllers=controllers,
        index=standby,
    )
    credentials = Credentials(run_name, f"controller {standby}", secret)
    server = ControlServer(where.host, where.port, credentials, options, PortRange.find(ports))
    typer.echo(f"listening on {HostPort(where.host, server.port)}", err=True)
    try:
        reason = server.wait()
    except KeyboardInterrupt:
        reason = "it was interrupted"
        server.close("the controller was interrupted")
    if json:
        print_json({"run": run_name, "over": reason})
    else:
        typer.echo(f"the run is over: {reason}")
