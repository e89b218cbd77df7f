"""The `tradewind` command, also as `python -m tradewind`: the command line, or one line that says how to install it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("typer", "rich")
"""What the extra `cli` installs: a rank that trains does without it."""


def main() -> None:
    """Run the command line; without the packages that it needs, end with exit code 2."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"tradewind: the command line needs {' and '.join(missing)}, not installed here. "
            "Install with: pip install 'tradewind[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from tradewind.cli import main as run

    run()


if __name__ == "__main__":
    main()
