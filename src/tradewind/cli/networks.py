"""`tradewind networks`: the networks of the catalog."""

from __future__ import annotations

from tradewind.cli.arguments import JsonOption

EXAMPLE = "tradewind networks"


def run(json: JsonOption = False) -> None:
    """List the networks of the catalog: their size with default options, what they are and which options they take."""
    from tradewind.catalog import list_networks
    from tradewind.cli.output import console, print_json, show, table

    entries = list_networks()
    if json:
        print_json(
            [
                {
                    "network": entry.name,
                    "sites": entry.sites,
                    "links": entry.links,
                    "description": entry.description,
                    "source": entry.source,
                    "options": [
                        {"option": option.name, "default": option.default, "meaning": option.meaning}
                        for option in entry.options
                    ],
                }
                for entry in entries
            ]
        )
        return
    made = table("network", ">sites", ">links", "what it is", "options")
    for entry in entries:
        options = ", ".join(option.name for option in entry.options)
        made.add_row(entry.name, str(entry.sites), str(entry.links), entry.description, options)
    show(console(), made)
