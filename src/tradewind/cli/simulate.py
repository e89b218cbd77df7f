"""`tradewind simulate NETWORK --scheme NAME`: schemes in simulated time, compared with the limit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tradewind.cli.arguments import (
    CodecOption,
    DefaultBandwidthOption,
    JsonOption,
    LatencyOption,
    NetworkArgument,
    OptionOption,
    PricesOption,
    RanksOption,
)

if TYPE_CHECKING:
    from tradewind.network import Network
    from tradewind.planning.host import HostCost
    from tradewind.schemes import Scheme
    from tradewind.sim.setup import StepTimes

EXAMPLE = "tradewind simulate crew-n2 --scheme crew,opr,a2a --p 5 --compute lstm --compute-range 50ms,200ms"


def run(
    network: NetworkArgument,
    scheme: Annotated[
        str,
        typer.Option("--scheme", metavar="A,B,...", help="Names from `tradewind schemes`, or POLICY+PLANNER."),
    ] = "tradewind",
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Replace the scheme's policy; also FILE.py:CLASS.")
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option("--planner", metavar="NAME", help="Replace the scheme's planner; also FILE.py:FUNCTION."),
    ] = None,
    p: Annotated[
        int | None, typer.Option("--p", min=2, metavar="N", help="Ready ranks that start a round (partial, selective).")
    ] = None,
    policy_option: Annotated[
        list[str] | None, typer.Option("--policy-option", metavar="KEY=VALUE", help="An option of the policy.")
    ] = None,
    planner_option: Annotated[
        list[str] | None, typer.Option("--planner-option", metavar="KEY=VALUE", help="An option of the planner.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1e-3, max=1e9, metavar="S", help="Simulated time.")] = 50.0,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the simulation.")] = 0,
    size: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Size of the tensor: 180MB.")] = "180MB",
    compute: Annotated[
        str, typer.Option("--compute", metavar="NAME", help="Step times: lstm, transformer, resnet50, or 100ms.")
    ] = "transformer",
    compute_range: Annotated[
        str | None, typer.Option("--compute-range", metavar="MIN,MAX", help="Rescale step times, e.g. 50ms,200ms.")
    ] = None,
    execution: Annotated[
        str | None, typer.Option("--execution", metavar="MODEL", help="store-and-forward, pipelined or chunked.")
    ] = None,
    discipline: Annotated[
        str | None,
        typer.Option("--discipline", metavar="NAME", help="fs, fcfs, task-fcfs, scatter-first or multicast-first."),
    ] = None,
    noise: Annotated[
        float,
        typer.Option("--noise", min=0, max=0.99, metavar="X", help="Largest relative error of bandwidth estimates."),
    ] = 0.0,
    faulty_links: Annotated[
        int, typer.Option("--faulty-links", min=0, metavar="N", help="Number of randomly chosen links that are down.")
    ] = 0,
    detect: Annotated[str, typer.Option("--detect", metavar="TIME", help="Time until a failure is detected.")] = "0s",
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="NAME", help="Let rates follow a trace of the catalog: netstorm9.")
    ] = None,
    frame_s: Annotated[
        str | None,
        typer.Option("--frame-s", metavar="TIME", help="Processor time of a rank for a frame, as in `tradewind plan`."),
    ] = None,
    byte_s: Annotated[
        str | None, typer.Option("--byte-s", metavar="TIME", help="Processor time of a rank for a byte.")
    ] = None,
    cores: Annotated[
        str | None, typer.Option("--cores", metavar="N", help="Cores that all ranks share, where they share a machine.")
    ] = None,
    rank_cores: Annotated[
        str | None, typer.Option("--rank-cores", metavar="N", help="Cores of each rank for its connections.")
    ] = None,
    codec: CodecOption = "none",
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="F", help="Write a trace: .jsonl, .csv, .parquet, .json (Perfetto)."),
    ] = None,
    flows: Annotated[bool, typer.Option("--flows", help="Write every flow into the trace, too.")] = False,
    links: Annotated[bool, typer.Option("--links", help="Show the busiest links.")] = False,
    option: OptionOption = None,
    latency: LatencyOption = None,
    default_bandwidth: DefaultBandwidthOption = None,
    prices: PricesOption = None,
    ranks_per_site: RanksOption = None,
    json: JsonOption = False,
) -> None:
    """Simulate how ranks train and synchronise under one or several schemes.

    The policies and planners are the production ones; time and links are virtual. The same seed gives the same result.
    Processors cost nothing unless --frame-s, --byte-s, --cores or --rank-cores is given; the others are then measured.
    """
    from tradewind.catalog import load_trace
    from tradewind.cli.output import check_out, print_json, write_whole
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.cli.show_simulation import as_json, show
    from tradewind.errors import BadOption
    from tradewind.sim import random_link_outages, simulate
    from tradewind.trace import TRACE_SUFFIXES, encode_trace
    from tradewind.units import parse_duration, parse_size

    schemes = _schemes(
        parse_names(scheme, "--scheme") or (), policy, planner, execution, discipline, p, policy_option, planner_option
    )
    if trace is not None:
        check_out(trace, TRACE_SUFFIXES, "--trace")
        if len(schemes) > 1:
            raise BadOption("--trace follows one scheme; several are given. Name one with --scheme.")
    if flows and trace is None:
        raise BadOption("--flows adds flows to a trace. Give a file with --trace.")
    found = resolve_network(network, None, option, latency, default_bandwidth, prices, ranks_per_site)
    moving = None if rates is None else load_trace(rates)
    steps = _step_times(compute, compute_range)
    host, schemes = _with_hosts(schemes, found, frame_s=frame_s, byte_s=byte_s, cores=cores, rank_cores=rank_cores)
    nbytes, detect_s = parse_size(size), parse_duration(detect)
    faults = random_link_outages(found, faulty_links, seed)
    results = []
    for each in schemes:
        text = f"simulating {each.name}, s"
        with progress(text) as report:
            result = simulate(
                found,
                each,
                seconds,
                seed,
                compute=steps,
                nbytes=nbytes,
                faults=faults,
                noise=noise,
                rates=moving,
                detect_s=detect_s,
                codec=codec,
                host=host,
                record="nothing" if trace is None else ("flows" if flows else "rounds"),
                progress=partial(report, text, total=seconds),
            )
        results.append(result)
        if trace is not None and result.trace is not None:
            write_whole(trace, encode_trace(result.trace, trace.suffix), "--trace")
    if json:
        print_json([as_json(result, found) for result in results])
    else:
        show(results, found, links)
        if trace is not None:
            typer.echo(f"wrote {trace}", err=True)


def _schemes(
    names: Sequence[str],
    policy: str | None,
    planner: str | None,
    execution: str | None,
    discipline: str | None,
    p: int | None,
    policy_pairs: list[str] | None,
    planner_pairs: list[str] | None,
) -> list[Scheme]:
    """The schemes, each with the given options that its policy and planner accept."""
    from tradewind.cli.resolve import parse_options
    from tradewind.errors import BadOption, UnknownName
    from tradewind.planning import DEFAULT_PLANNER, planner_options
    from tradewind.planning import planner as registered_planner
    from tradewind.policy import policy as registered_policy
    from tradewind.policy import policy_options
    from tradewind.schemes import EXECUTION_MODELS, make_scheme

    if execution is not None and execution not in EXECUTION_MODELS:
        raise UnknownName("execution model", execution, EXECUTION_MODELS)
    for_policy: dict[str, object] = {**parse_options(policy_pairs, "--policy-option")}
    if p is not None:
        for_policy["p"] = p
    for_planner: dict[str, object] = {**parse_options(planner_pairs, "--planner-option")}
    bare = [
        make_scheme(name, policy=policy, planner=planner, execution=execution, discipline=discipline)  # type: ignore[arg-type]
        for name in names
    ]
    policy_takes = {s.name: {field.name for field in registered_policy(s.policy).option_fields} for s in bare}
    planner_takes = {
        s.name: {field.name for field in registered_planner(s.planner or DEFAULT_PLANNER).option_fields} for s in bare
    }
    for kind, given, takes in (("policy", for_policy, policy_takes), ("planner", for_planner, planner_takes)):
        for key in given:
            if not any(key in taken for taken in takes.values()):
                known = ", ".join(sorted(set().union(*takes.values()))) or "none"
                raise BadOption(f"no {kind} of {', '.join(names)} takes an option {key!r}. They take: {known}.")
    made = [
        make_scheme(
            s,
            policy_options={k: v for k, v in for_policy.items() if k in policy_takes[s.name]},
            planner_options={k: v for k, v in for_planner.items() if k in planner_takes[s.name]},
        )
        for s in bare
    ]
    for s in made:  # wrong values raise an error before any work is done
        policy_options(s.policy, s.policy_options)
        planner_options(s.planner or DEFAULT_PLANNER, s.planner_options)
    return made


def _with_hosts(schemes: Sequence[Scheme], network: Network, **given: str | None) -> tuple[HostCost, list[Scheme]]:
    """The hosts of a simulation, free ones by default, and the schemes, whose planners plan for them."""
    from tradewind.errors import BadOption
    from tradewind.planning import default_planner, planner
    from tradewind.planning.host import FREE_HOST, HostCost
    from tradewind.schemes import make_scheme
    from tradewind.units import parse_duration

    try:
        host = {
            name: parse_duration(text) if text[-1:].isalpha() and name.endswith("_s") else float(text)
            for name, text in given.items()
            if text is not None
        }
        made = HostCost(**host) if host else FREE_HOST  # type: ignore[arg-type]
    except ValueError as error:
        raise BadOption(f"hosts: {error}.") from error
    planned = []
    for scheme in schemes:
        used = planner(scheme.planner or default_planner(network, network.names))
        takes = {field.name for field in used.option_fields}
        options = {name: value for name, value in host.items() if name in takes - set(scheme.planner_options)}
        planned.append(make_scheme(scheme, planner_options=options))
    return made, planned


def _step_times(text: str, between: str | None) -> StepTimes:
    from tradewind.catalog import load_compute_times
    from tradewind.errors import BadOption
    from tradewind.sim import ConstantSteps
    from tradewind.units import parse_duration

    if text[:1].isdigit():
        if between is not None:
            raise BadOption(f"--compute {text} is one time; --compute-range has nothing to rescale. Leave it out.")
        return ConstantSteps(parse_duration(text))
    times = load_compute_times(text)
    if between is None:
        return times
    low, comma, high = between.partition(",")
    if not comma:
        raise BadOption(f"--compute-range {between!r}: give two times, like 50ms,200ms.")
    return times.rescaled(parse_duration(low.strip()), parse_duration(high.strip()))
