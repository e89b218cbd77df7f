"""`tradewind doctor [HOST:PORT]`: check whether this machine or a pair of machines is ready to train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.runtime.addresses import HostPort
    from tradewind.runtime.machine_checks import Check

EXAMPLE = "TRADEWIND_SECRET=... tradewind doctor 10.0.0.1:29500"

MACHINE, PAIR = "this machine", "the pair"
EVERYWHERE = "0.0.0.0"


def run(
    address: Annotated[
        str | None,
        typer.Argument(metavar="HOST:PORT", help="The other machine, where `tradewind doctor --listen` runs."),
    ] = None,
    listen: Annotated[bool, typer.Option("--listen", help="Wait to be checked from the other machine.")] = False,
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", min=0, max=65535, help="With --listen; by default 29500.")
    ] = None,
    wait: Annotated[str, typer.Option("--wait", metavar="TIME", help="With --listen: how long to wait.")] = "10min",
    lab: Annotated[bool, typer.Option("--lab/--no-lab", help="Whether to check what `tradewind lab` needs.")] = True,
    json: JsonOption = False,
) -> None:
    """Check whether this machine, or this pair of machines, is ready to train, and show what to change.

    For a pair, run `tradewind doctor --listen` on one machine and `tradewind doctor HOST:PORT` on the other. Both show
    versions, ports in both directions, addresses, MTU, clocks, round trip and bandwidth; TRADEWIND_SECRET must be set.
    Exits with 1 if something fails.
    """
    from tradewind.cli.output import print_json
    from tradewind.errors import BadOption
    from tradewind.runtime.addresses import HostPort
    from tradewind.units import parse_duration

    if listen and address is not None:
        raise BadOption(f"--listen and HOST:PORT ({address!r}) exclude each other. Give one of them.")
    if port is not None and not listen:
        raise BadOption(f"--port {port}: only --listen has a port. Write HOST:PORT to call another machine.")
    target, wait_s = None if address is None else HostPort.parse(address), parse_duration(wait)
    alone = target is None and not listen
    found = [(MACHINE, check) for check in _machine(lab and alone, None if target is None else target.host)]
    if listen:
        found += [(f"{PAIR}, as the other machine sees it", check) for check in _listen(port, wait_s)]
    elif target is not None:
        found += [(PAIR, check) for check in _call(target)]
    if json:
        keys = ("name", "state", "found", "advice")
        rows = [{"about": about, **{key: getattr(check, key) for key in keys}} for about, check in found]
        print_json({"ok": all(check.state != "fail" for _, check in found), "checks": rows})
    else:
        _show(found)
    if any(check.state == "fail" for _, check in found):
        raise typer.Exit(1)


def _machine(lab: bool, peer: str | None) -> Iterator[Check]:
    from tradewind.runtime.machine_checks import check_machine

    yield from check_machine(peer)
    if lab:
        yield from _lab()


def _lab() -> Iterator[Check]:
    """Whether labs can be built, checked by building a small one with each backend."""
    from tradewind.cli.progress import progress
    from tradewind.errors import TradewindError
    from tradewind.lab.session import Lab
    from tradewind.network import Link, Network, Site
    from tradewind.runtime.machine_checks import Check

    needs = {"htb": "namespaces, veth, bridge and HTB work", "delay": "namespaces and TUN work"}
    links = [Link("a", "b", 1e6), Link("b", "a", 1e6)]
    network = Network.from_links("doctor", [Site("a"), Site("b")], links)
    for backend, works in needs.items():
        try:
            with progress(f"building a lab with {backend}"), Lab(network, backend, calibrate=False):
                yield Check(f"lab, {backend}", "ok", works)
        except (TradewindError, ImportError) as error:
            advice = "Only `tradewind lab` needs it: pip install 'tradewind[lab]', and root or user namespaces."
            yield Check(f"lab, {backend}", "warn", str(error), advice)


def _listen(port: int | None, wait_s: float) -> list[Check]:
    from tradewind.errors import InputError, TradewindError
    from tradewind.runtime.addresses import HostPort
    from tradewind.runtime.machine_checks import Check, announced_address
    from tradewind.runtime.options import resolve_options
    from tradewind.runtime.pair_checks import DEFAULT_PORT, Listening

    try:
        transport = resolve_options()[0].transport
        here, _ = announced_address(resolve_options()[0])
        host = (transport.bind or EVERYWHERE) if transport.interface is None else here
    except InputError:
        here, host = "HOST", EVERYWHERE
    listening = Listening.on(host, DEFAULT_PORT if port is None else port, lambda said: typer.echo(said, err=True))
    where = HostPort(here, listening.port)
    typer.echo(f"listening; on the other machine run: tradewind doctor {where}", err=True)
    try:
        return listening.serve(wait_s)
    except TradewindError as error:
        return [Check("the other machine", "fail", str(error))]


def _call(target: HostPort) -> list[Check]:
    from tradewind.cli.progress import progress
    from tradewind.runtime.pair_checks import check_pair

    with progress(f"checking this machine and {target}"):
        return list(check_pair(target))


def _show(found: list[tuple[str, Check]]) -> None:
    from tradewind.cli.output import console, show, table

    out = console()
    for about in dict.fromkeys(about for about, _ in found):
        made = table("check", "state", "found", "what to change", title=about.capitalize())
        for _, check in (row for row in found if row[0] == about):
            made.add_row(check.name, check.state, check.found, check.advice)
        show(out, made)
