"""`python -m tradewind`: the command line, for whoever knows the interpreter better than its scripts' folder."""

from __future__ import annotations

from tradewind.cli import main

if __name__ == "__main__":
    main()
