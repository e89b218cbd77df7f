"""`tradewind schemes`: the named systems, each a policy and a planner with their options."""

from __future__ import annotations

from tradewind.cli.arguments import JsonOption

EXAMPLE = "tradewind schemes"


def run(json: JsonOption = False) -> None:
    """List the schemes: which policy and planner each name stands for.

    POLICY+PLANNER is a scheme too, with any of `tradewind policies` and `tradewind planners`.
    """
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.schemes import schemes

    if json:
        print_json(
            [
                {
                    "scheme": scheme.name,
                    "policy": scheme.policy,
                    "policy_options": dict(scheme.policy_options),
                    "planner": scheme.planner,
                    "planner_options": dict(scheme.planner_options),
                    "execution": scheme.execution,
                    "scatter": scheme.scatter,
                    "summary": scheme.summary,
                }
                for scheme in schemes()
            ]
        )
        return
    made = table("scheme", "policy", "planner", "scatter", "what it is")
    for scheme in schemes():
        made.add_row(scheme.name, scheme.policy, scheme.planner, scheme.scatter, scheme.summary)
    show(console(), made)
