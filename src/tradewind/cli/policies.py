"""`tradewind policies [NAME]`: the policies, or the options of one policy."""

from __future__ import annotations

from typing import Annotated

import typer

from tradewind.cli.arguments import JsonOption

EXAMPLE = "tradewind policies selective"


def run(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this policy's options; also FILE.py:CLASS.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the policies, or one policy's options with their defaults and meaning."""
    from tradewind.cli.listing import show_all, show_one
    from tradewind.policy import POLICIES, policy

    if name is not None:
        show_one("policy", policy(name), lambda option: f"--policy-option {option}=", json)
    else:
        show_all(POLICIES, policy, json)
