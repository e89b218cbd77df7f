"""`tradewind secret`: a secret for a run, from the system's random numbers."""

from __future__ import annotations

from tradewind.cli.arguments import JsonOption

EXAMPLE = "export TRADEWIND_SECRET=$(tradewind secret)"
SECRET_BYTES = 24


def run(json: JsonOption = False) -> None:
    """Print a new secret of 192 bits for a run; give it to every rank as TRADEWIND_SECRET.

    Processes that know it may join the run. It is not stored, and never written to a log.
    """
    import secrets

    from tradewind.cli.output import print_json

    made = secrets.token_urlsafe(SECRET_BYTES)
    if json:
        print_json({"secret": made, "bits": 8 * SECRET_BYTES})
    else:
        print(made)
