"""`tradewind lab ...`: an emulated wide-area network on this machine, to run commands in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import JsonOption, NetworkArgument, OptionOption, RanksOption, SeedOption
from tradewind.cli.guard import guarded
from tradewind.cli.verbs import HELP_FLAGS, VerbCommand, VerbGroup

if TYPE_CHECKING:
    from tradewind.lab.session import Lab

EXAMPLE = "tradewind lab run mesh --option n=4 -- python train.py"

app = typer.Typer(
    cls=VerbGroup,
    help="Emulate a wide-area network on this machine, and run commands in its sites.",
    epilog=f"Example: {EXAMPLE}",
    no_args_is_help=True,
    context_settings=HELP_FLAGS,
)

BackendOption = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="htb, delay, inproc, or auto: the first that works.")
]
ScaleOption = Annotated[
    str | None,
    typer.Option("--scale", metavar="F", help="Multiply every capacity by F; auto: what this machine can carry."),
]
CalibrateOption = Annotated[
    bool, typer.Option("--calibrate/--no-calibrate", help="Check that all links carry their rates at once.")
]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the lab.")]
LinkArgument = Annotated[str, typer.Argument(metavar="LINK", help="A->B, or A-B for both directions.")]
SiteArgument = Annotated[str, typer.Argument(metavar="SITE", help="Site to run it in.")]
RateArgument = Annotated[str, typer.Argument(metavar="RATE", help="Such as 40Mbps.")]
CommandArgument = Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command to run.")]
SpeedOption = Annotated[float, typer.Option("--speed", metavar="X", help="Replay the trace X times as fast.")]
DEFAULT_NAME = "lab"
REPLAY_TICK_S = 0.5


def open_lab(
    network: str,
    backend: str,
    scale: str | None,
    calibrate: bool,
    name: str | None,
    seed: int | None,
    option: Any,
    ranks: int | None = None,
) -> Lab:
    """Start the lab that the options describe."""
    from tradewind.errors import BadOption
    from tradewind.lab.starting import early

    try:
        factor = scale if scale in (None, "auto") else float(scale)
    except ValueError:
        raise BadOption(f"--scale {scale!r}: give a number above zero, or auto.") from None
    with early():  # what follows takes a while to load
        from tradewind.cli.progress import progress
        from tradewind.cli.resolve import resolve_network
        from tradewind.lab.session import Lab

        found = resolve_network(network, seed, option, ranks=ranks).sites_only()
        text = f"{len(found)} sites of {found.name}"
        steps = ("building", "calibrating")[: 1 + calibrate]
        with progress(text) as report:
            return Lab(
                found,
                backend,
                scale=factor,
                calibrate=calibrate,
                name=name,
                on_step=lambda step: report(text, steps.index(step), len(steps), step),
            )


def _find(name: str) -> Lab:
    from tradewind.lab.directory import find
    from tradewind.lab.session import Lab

    return Lab.attach(find(name))


def _describe(lab: Lab) -> list[str]:
    from tradewind.units import format_duration

    lines = [f"{len(lab.network)} sites of {lab.network.name} on {lab.backend}, TCP with {lab.congestion_control}"]
    lines += [f"note: {note}" for note in lab.notes]
    if lab.calibration is not None:
        lines.append(f"calibration, {format_duration(lab.calibration.seconds)}: {lab.calibration}")
    elif lab.backend != "inproc":
        lines.append("not calibrated: not checked whether this machine carries these rates")
    return lines


def up(
    network: NetworkArgument,
    backend: BackendOption = "auto",
    scale: ScaleOption = None,
    calibrate: CalibrateOption = True,
    name: NameOption = DEFAULT_NAME,
    seed: SeedOption = None,
    option: OptionOption = None,
    ranks_per_site: RanksOption = None,
    json: JsonOption = False,
) -> None:
    """Start a lab that stays up until `lab down`."""
    from tradewind.cli.output import print_json
    from tradewind.errors import CannotEmulate
    from tradewind.units import format_duration

    lab = open_lab(network, backend, scale, calibrate, name, seed, option, ranks_per_site)
    if lab.backend == "inproc":
        raise CannotEmulate(
            f"lab up cannot use inproc, which has nothing to keep running. {lab.why} Use tradewind lab run, "
            "whose processes limit their own rates."
        )
    lab.release()
    if json:
        print_json(_facts(lab))
        return
    first, *more = _describe(lab)
    for line in (f"{first}; up in {format_duration(lab.build_s)}", *more):
        typer.echo(line)


def execute(site: SiteArgument, command: CommandArgument, name: NameOption = DEFAULT_NAME) -> None:
    """Run a command in a site, attached to this terminal, and exit with its exit code."""
    raise typer.Exit(_exit_code(_find(name).popen(site, command).wait()))


def run(
    network: NetworkArgument,
    command: CommandArgument,
    backend: BackendOption = "auto",
    scale: ScaleOption = None,
    calibrate: CalibrateOption = True,
    trace: Annotated[str | None, typer.Option("--replay", metavar="TRACE", help="Change rates by this trace.")] = None,
    speed: SpeedOption = 1.0,
    deadline: Annotated[str, typer.Option("--deadline", metavar="TIME", help="End the command after TIME.")] = "1h",
    seed: SeedOption = None,
    option: OptionOption = None,
    ranks_per_site: RanksOption = None,
) -> None:
    """Start a lab, run the command once for every rank of every site, and end the lab.

    The environment of the command has RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun, and
    TRADEWIND_SITE, TRADEWIND_NETWORK, TRADEWIND_BIND and TRADEWIND_SECRET. Each line of output is prefixed with its
    site's name. When the command fails in one site, it is ended in all.
    """
    from tradewind.catalog.traces import load_trace
    from tradewind.units import parse_duration

    deadline_s = parse_duration(deadline)
    played = None if trace is None else load_trace(trace)
    with open_lab(network, backend, scale, calibrate, None, seed, option, ranks_per_site) as lab:
        for line in _describe(lab):
            typer.echo(line, err=True)
        replay = None if played is None else lab.replay(played, speed)
        try:
            for site in lab.run(command, deadline_s=deadline_s, on_line=_show_line):
                for line in site.stderr.splitlines():
                    typer.echo(f"[{site.site}] {line}", err=True)
        finally:
            if replay is not None:
                replay.stop()


def _show_line(site: str, line: str) -> None:
    typer.echo(f"[{site}] {line}")


def set_rate(link: LinkArgument, rate: RateArgument, name: NameOption = DEFAULT_NAME) -> None:
    """Set the rate of a link."""
    from tradewind.units import format_rate, parse_rate

    bps = parse_rate(rate)
    _find(name).set_rate(link, bps)
    typer.echo(f"{link}: {format_rate(bps)}")


def cut(link: LinkArgument, name: NameOption = DEFAULT_NAME) -> None:
    """Drop all traffic on a link, as a failed link does."""
    _find(name).cut(link)
    typer.echo(f"{link}: cut")


def heal(link: LinkArgument, name: NameOption = DEFAULT_NAME) -> None:
    """Undo `lab cut`."""
    _find(name).heal(link)
    typer.echo(f"{link}: healed")


def replay(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace of the catalog: netstorm9.")],
    speed: SpeedOption = 1.0,
    name: NameOption = DEFAULT_NAME,
) -> None:
    """Change the rates as a trace specifies, from its start to its end; Ctrl-C leaves them as they are."""
    from tradewind.catalog.traces import load_trace
    from tradewind.cli.progress import progress
    from tradewind.units import format_count, format_duration

    lab, played = _find(name), load_trace(trace)
    replaying = lab.replay(played, speed)
    try:
        text = f"{format_count(len(played.start_s), 'epoch')} in {format_duration(replaying.seconds)}"
        with progress(text) as report:
            while not replaying.wait(REPLAY_TICK_S):
                report(text, replaying.epoch + 1, len(played.start_s))
    except KeyboardInterrupt:
        replaying.stop()
    typer.echo(f"{trace}: epoch {replaying.epoch + 1} of {len(played.start_s)} is in force")


def status(name: NameOption = DEFAULT_NAME, json: JsonOption = False) -> None:
    """Show the lab and the state of its links."""
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.units import format_rate, format_size

    lab = _find(name)
    facts = _facts(lab)
    if json:
        print_json(facts)
        return
    for line in _describe(lab):
        typer.echo(line)
    made = table("link", ">rate", ">latency", "state", ">carried", ">calibration")
    for link, fact in zip(lab.network.links, facts["links"], strict=True):
        ratio = "" if fact["calibration"] is None else f"{fact['calibration']:.0%}"
        state, carried = "cut" if fact["cut"] else "up", format_size(fact["sent_bytes"])
        latency = f"{link.latency_s * 1e3:g} ms"
        made.add_row(f"{link.src}->{link.dst}", format_rate(fact["bandwidth_bps"]), latency, state, carried, ratio)
    show(console(), made)


def _facts(lab: Lab) -> dict[str, Any]:
    now = lab.status()
    ratios = {} if lab.calibration is None else lab.calibration.ratios
    links = [
        {
            "link": f"{link.src}->{link.dst}",
            "bandwidth_bps": bps,
            "cut": is_cut,
            "sent_bytes": sent,
            "calibration": ratios.get(f"{link.src}->{link.dst}"),
        }
        for link, bps, is_cut, sent in zip(lab.network.links, now.bandwidth_bps, now.cut, now.sent_bytes, strict=True)
    ]
    return {
        "name": lab.directory.name,
        "network": lab.network.name,
        "backend": lab.backend,
        "scale": lab.scale,
        "notes": lab.notes,
        "congestion_control": lab.congestion_control,
        "payload_share": lab.payload_share,
        "build_seconds": lab.build_s,
        "calibration_seconds": None if lab.calibration is None else lab.calibration.seconds,
        "addresses": {site: lab.address(site) for site in lab.network.names},
        "links": links,
    }


def down(
    name: NameOption = DEFAULT_NAME,
    everything: Annotated[bool, typer.Option("--all", help="Every lab of this user.")] = False,
) -> None:
    """End a lab and every process in it, and remove what labs that were killed left behind."""
    from tradewind.errors import UnknownName
    from tradewind.lab.directory import list_labs, sweep

    left = sweep()
    living = {lab.name: lab for lab in list_labs()}
    chosen = list(living.values()) if everything else [living[name]] if name in living else []
    for lab in chosen:
        lab.kill()
    for lab in chosen:
        typer.echo(f"{lab.name}: down")
    for gone in left:
        typer.echo(f"{gone}: was killed; removed what it left behind")
    if not chosen and living:
        raise UnknownName("lab", name, living)
    if not chosen and not left:
        typer.echo("no lab is up")


def _exit_code(returned: int) -> int:
    """The exit code as a shell reports it: 128 plus the signal for a command that was killed."""
    return returned if returned >= 0 else 128 - returned


for _name, _verb in (
    ("up", up),
    ("exec", execute),
    ("run", run),
    ("set", set_rate),
    ("cut", cut),
    ("heal", heal),
    ("replay", replay),
    ("status", status),
    ("down", down),
):
    _paragraphs = (_verb.__doc__ or "").split("\n\n")
    _help = "\n\n".join(" ".join(paragraph.split()) for paragraph in _paragraphs)
    app.command(_name, cls=VerbCommand, help=_help, context_settings=HELP_FLAGS)(guarded(_verb))
