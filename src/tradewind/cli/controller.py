"""`tradewind controller --listen HOST:PORT`: the controller of a run, as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from tradewind.cli.arguments import JsonOption

EXAMPLE = "TRADEWIND_SECRET=... tradewind controller --listen 127.0.0.1:4000 --world 4 --network gscale"


def run(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where ranks connect; port 0: any free port.")
    ],
    world: Annotated[int, typer.Option("--world", metavar="N", help="How many ranks the run has.")],
    scheme: Annotated[
        str | None, typer.Option("--scheme", metavar="NAME", help="A system such as crew, or POLICY+PLANNER.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="NAME", help="Which ranks synchronise, and when; also FILE.py:CLASS."),
    ] = None,
    policy_options: Annotated[
        str | None, typer.Option("--policy-options", metavar="K=V,...", help="Options of the policy.")
    ] = None,
    planner: Annotated[
        str | None, typer.Option("--planner", metavar="NAME", help="How bytes travel; also FILE.py:FUNCTION.")
    ] = None,
    planner_options: Annotated[
        str | None, typer.Option("--planner-options", metavar="K=V,...", help="Options of the planner.")
    ] = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="F.json", help="A plan to use instead of a planner.")
    ] = None,
    scatter: Annotated[
        str | None,
        typer.Option("--scatter", metavar="HOW", help="blocking, or non-blocking: send before a round is known."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", metavar="NETWORK", help="A catalog name or a file; ranks are at its sites."),
    ] = None,
    run_name: Annotated[str, typer.Option("--run", metavar="NAME", help="The run's name.")] = "tradewind",
    patience_s: Annotated[
        str | None,
        typer.Option("--patience-s", metavar="TIME", help="Silence after which a rank is lost; by default 30s."),
    ] = None,
    tolerant: Annotated[
        bool | None, typer.Option("--tolerant", help="Continue without lost ranks, also under bsp.")
    ] = None,
    controllers: Annotated[
        int, typer.Option("--controllers", metavar="N", help="Controllers of the run, this one included.")
    ] = 1,
    standby: Annotated[
        int, typer.Option("--standby", metavar="I", help="Index of this controller; 0 acts, others stand by.")
    ] = 0,
    ports: Annotated[
        str | None, typer.Option("--ports", metavar="A-B", help="Listen on a port of this range, for a firewall.")
    ] = None,
    security: Annotated[
        str | None, typer.Option("--security", metavar="HOW", help="auto, off, secret, or tls with certificates.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="F.crt", help="The certificate of the controller, for TLS.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="F.key", help="The private key of the certificate.")
    ] = None,
    ca: Annotated[str | None, typer.Option("--ca", metavar="F.crt", help="The certificate of the run's CA.")] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="DIR", help="Write a trace of the controller's decisions there.")
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option("--dashboard", metavar="[HOST]:PORT", help="Serve the live page there; :8080: on loopback."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the controller of a run until the run ends, for ranks that connect with `controller=HOST:PORT`.

    The run's secret is read from the environment variable TRADEWIND_SECRET. Options that are not given have the values
    that `tradewind config` shows.
    """
    import os

    from tradewind.cli.output import print_json
    from tradewind.errors import BadOption
    from tradewind.runtime.addresses import HostPort, is_loopback
    from tradewind.runtime.certificates import SecureCredentials
    from tradewind.runtime.control_server import ControlServer
    from tradewind.runtime.group import find_credentials
    from tradewind.runtime.options import LAB_VARIABLE, options_by_field, resolve_options

    if world < 1:
        raise BadOption(f"--world must be at least 1, got {world}.")
    if not 0 <= standby < controllers:
        raise BadOption(f"--standby must be in [0, {controllers}) with --controllers {controllers}, got {standby}.")
    flags = {
        "scheme": scheme,
        "policy": policy,
        "policy_options": policy_options,
        "planner": planner,
        "planner_options": planner_options,
        "plan": plan,
        "scatter": scatter,
        "network": network,
        "patience_s": patience_s,
        "tolerant": tolerant,
        "ports": ports,
        "security": security,
        "certificate": certificate,
        "key": key,
        "ca": ca,
        "trace": trace,
        "dashboard": dashboard,
    }
    options, _ = resolve_options(options_by_field(flags))
    where = HostPort.parse(listen)
    control = options.control_options(world, controllers, standby)
    credentials = find_credentials(run_name, f"controller {standby}", None, options)
    allowed, page = options.transport.port_range, options.dashboard_address
    server = ControlServer(where.host, where.port, credentials, control, allowed, options.trace_place, page)
    is_encrypted = isinstance(credentials, SecureCredentials)
    if not is_encrypted and not is_loopback(where.host) and LAB_VARIABLE not in os.environ:
        typer.echo(
            "warning: what ranks on other hosts and this controller exchange is not encrypted, small arrays included. "
            "Give certificates (docs/guides/security.md), or use a VPN.",
            err=True,
        )
    typer.echo(f"listening on {HostPort(where.host, server.port)}", err=True)
    try:
        reason = server.wait()
    except KeyboardInterrupt:
        reason = "the controller was interrupted"
        server.close(reason)
    if json:
        print_json({"run": run_name, "over": reason})
    else:
        typer.echo(f"the run has ended: {reason}")
