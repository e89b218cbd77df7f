"""Hypothesis without deadlines: tests never assert on wall time, and shared machines are slow at times.

Under CI examples are the same on every run, so that a red build means a change and not bad luck; elsewhere they
differ each time, so that people keep finding new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("tradewind", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("tradewind")
