"""`tradewind config`: every option of a run, its value and the origin of the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.runtime.options import Setting

EXAMPLE = "TRADEWIND_PLANNER=ring tradewind config"


def run(json: JsonOption = False) -> None:
    """Show every option of a run started here, set by the environment (TRADEWIND_*), a file, a scheme, or by default.

    The file is `tradewind.toml` in the working directory, or the one that TRADEWIND_CONFIG names. Arguments of the
    program, which take precedence, are not known here.
    """
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.cli.planner_flags import run_option_meanings
    from tradewind.runtime.options import resolve_options

    _, settings = resolve_options()
    meanings = run_option_meanings()
    if json:
        print_json(
            [
                {"option": s.name, "value": _plain(s.value), "origin": s.origin, "meaning": meanings[s.name]}
                for s in settings
            ]
        )
        return
    made = table("option", "value", "origin", "meaning")
    for setting in settings:
        made.add_row(setting.name, _shown(setting), setting.origin, meanings[setting.name])
    show(console(), made)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | bool | int | float | dict) else str(value)


def _shown(setting: Setting) -> str:
    value = setting.value
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return "" if value is None else str(value)
