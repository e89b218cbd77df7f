"""The entry point of the `tradewind` command and of `python -m tradewind`.

If the packages of the command line are not installed, it prints how to install them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("typer", "rich")
"""Packages that the extra `cli` installs; training does not need them."""


def main() -> None:
    """Run the command line; exit with code 2 if the packages that it needs are missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"tradewind: the command line needs {' and '.join(missing)}, not installed. "
            "Install with: pip install 'tradewind[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from tradewind.cli import main as run

    run()


if __name__ == "__main__":
    main()
