"""`tradewind schemes [NAME]`: the named systems, or the parameters of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.schemes import Scheme

EXAMPLE = "tradewind schemes netstorm-pro"
PARTS = ("policy", "planner", "scatter", "discipline", "failover")


def run(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this scheme's parameters; also POLICY+PLANNER.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the schemes, or every parameter of one with its value and meaning.

    POLICY+PLANNER is a scheme too, with any of `tradewind policies` and `tradewind planners`. Parameters are options of
    a run: arguments of `connect` and `Synchronizer`, TRADEWIND_* variables, or entries of `tradewind.toml`.
    """
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.schemes import make_scheme, schemes

    out = console()
    if name is not None:
        scheme = make_scheme(name)
        parameters = _parameters(scheme)
        if json:
            print_json({**_described(scheme), "parameters": parameters})
            return
        out.print(f"{scheme.name}: {scheme.summary}")
        made = table("option", "value", "meaning")
        for row in parameters:
            made.add_row(row["option"], "" if row["value"] is None else str(row["value"]), row["meaning"])
        show(out, made)
        return
    if json:
        print_json([_described(scheme) for scheme in schemes()])
        return
    made = table("scheme", "policy", "planner", "what it is")
    for scheme in schemes():
        made.add_row(scheme.name, scheme.policy, scheme.planner or "by size", scheme.summary)
    show(out, made)


def _described(scheme: Scheme) -> dict[str, Any]:
    return {
        "scheme": scheme.name,
        "policy": scheme.policy,
        "policy_options": dict(scheme.policy_options),
        "planner": scheme.planner,
        "planner_options": dict(scheme.planner_options),
        "execution": scheme.execution,
        "scatter": scheme.scatter,
        "summary": scheme.summary,
    }


def _parameters(scheme: Scheme) -> list[dict[str, Any]]:
    """What a live run of the scheme is made of: its parts, their options, and the run's options that it sets."""
    from tradewind.cli.planner_flags import option_meanings, run_option_meanings
    from tradewind.planning import DEFAULT_PLANNER, planner_options
    from tradewind.policy import policy_options

    meanings, run_options = run_option_meanings(), dict(scheme.run_options)
    own = {part: getattr(scheme, part) for part in PARTS} | {"discipline": scheme.discipline or "task-fcfs"}
    rows = [{"option": part, "value": own[part], "meaning": meanings[part]} for part in PARTS]
    for part, options in (
        ("policy_options", policy_options(scheme.policy, scheme.policy_options)),
        ("planner_options", planner_options(scheme.planner or DEFAULT_PLANNER, scheme.planner_options)),
    ):
        for field, meaning in option_meanings(type(options)).items():
            value = getattr(options, field)
            plain = value if value is None or isinstance(value, str | bool | int | float) else str(value)
            rows.append({"option": f"{part}.{field}", "value": plain, "meaning": meaning})
    rows += [{"option": path, "value": value, "meaning": meanings[path]} for path, value in run_options.items()]
    rows += [
        {"option": f"Synchronizer({name}=...)", "value": None, "meaning": meaning}
        for name, meaning in scheme.in_training.items()
    ]
    return rows
