"""`python -m tradewind.native`: compile the kernels of a source checkout, or say why that is impossible."""

from __future__ import annotations

import sys

from tradewind.native.build import CannotBuild, build


def main() -> int:
    """Compile; returns the exit code."""
    try:
        print(f"compiled {build()}")
    except CannotBuild as error:
        print(f"not compiled: {error}. Tradewind works without it, with more processor time.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
