"""The process of one site that `lab.processes` started: its place among the sites, and the call of its function.

`python -m tradewind.lab.site MODULE:FUNCTION FOLDER` reads the arguments from the folder, calls the function with this
process's place, and writes its result, or the name and message of its error, to the folder as JSON.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from tradewind import errors
from tradewind.errors import BadOption, SiteFailed, TradewindError
from tradewind.formats import read_network
from tradewind.network import Network

if TYPE_CHECKING:
    from tradewind.runtime.group import Group
    from tradewind.runtime.options import RunFields, RunOptions

ADDRESSES_VARIABLE = "TRADEWIND_CONTROLLERS"
NETWORK_VARIABLE = "TRADEWIND_NETWORK"
BIND_VARIABLE = "TRADEWIND_BIND"
ARGUMENTS_FILE = "arguments.json"
DEFAULT_DEADLINE_S = 600.0
"""Default time limit of one call of all sites, in seconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one process among the sites."""

    rank: int
    world: int
    site: str
    """The name of its site, or of this rank of it where the site has several: SITE/NUMBER."""
    network: Network
    """The network that is emulated between the sites."""
    controllers: tuple[str, ...]
    """Controller addresses, one for each group that the sites form one after the other."""

    @classmethod
    def here(cls) -> Place:
        """The place of this process, from its environment; raises `BadOption` if `lab.processes` did not start it."""
        # Imported here and below: they load slowly, and `lab up`, which imports this module, does not need them.
        from tradewind.runtime.shape_alone import SHAPE_VARIABLE

        named = NETWORK_VARIABLE if NETWORK_VARIABLE in os.environ else SHAPE_VARIABLE
        missing = {"RANK", "WORLD_SIZE", named, ADDRESSES_VARIABLE} - os.environ.keys()
        if missing:
            raise BadOption(
                f"this process is not a site of a lab: {', '.join(sorted(missing))} is not set. Start it with "
                "`tradewind lab run`."
            )
        rank, network = int(os.environ["RANK"]), read_network(os.environ[named])
        addresses = tuple(os.environ[ADDRESSES_VARIABLE].split(","))
        return cls(rank, int(os.environ["WORLD_SIZE"]), network.rank_names[rank], network, addresses)

    def connect(self, group: int = 0, options: RunOptions | None = None, **fields: Unpack[RunFields]) -> Group:
        """Join the sites' group of that number, on the emulated network, which the controller plans with.

        Only the options passed here are used, not the environment or `tradewind.toml`.
        """
        from tradewind.runtime.group import connect
        from tradewind.runtime.options import RunOptions, Transport, choose_options

        bind = os.environ.get(BIND_VARIABLE)
        here = RunOptions(network=self.network, transport=Transport(connections=1, bind=bind))
        chosen = choose_options(options, fields).over(here).complete()
        return connect(self.controllers[group], self.rank, self.world, chosen, run=f"group-{group}")


class Outcome(msgspec.Struct, omit_defaults=True):
    """The outcome of a call: its result, or the name and message of its error."""

    answer: Any = None
    error: str = ""
    message: str = ""

    def as_error(self, site: str) -> TradewindError:
        """The error to raise in the caller: of the same class if it is a `TradewindError`, otherwise `SiteFailed`."""
        kind = getattr(errors, self.error, None)
        plain = isinstance(kind, type) and issubclass(kind, TradewindError) and kind is not errors.UnknownName
        text = f"site {site!r}: {self.message}" if plain else f"site {site!r}: {self.error}: {self.message}"
        return kind(text) if plain and kind is not None else SiteFailed(text)


def outcome_file(folder: Path, rank: int) -> Path:
    """The file to which a rank writes the outcome of its call."""
    return folder / f"outcome-{rank}.json"


def main(function: str, folder: Path) -> int:
    """Call `MODULE:FUNCTION` and write its outcome; returns the exit code."""
    try:
        module, _, name = function.partition(":")
        arguments = msgspec.json.decode((folder / ARGUMENTS_FILE).read_bytes())
        place = Place.here()
        called = getattr(importlib.import_module(module), name)
        outcome = Outcome(called(place, **arguments))
        packed = msgspec.json.encode(outcome)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(error=type(error).__name__, message=str(error))
        packed = msgspec.json.encode(outcome)
    outcome_file(folder, int(os.environ["RANK"])).write_bytes(packed)
    return 1 if outcome.error else 0


if __name__ == "__main__":
    code = main(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the outcome is written; a normal exit has aborted in threads of libraries
