"""The state of a run to look at: a live page, metrics, and the cause of slow rounds.

`RunModel` is the state, fed by trace records; `PageServer` serves it to browsers, `tradewind top` and Prometheus.
"""

from __future__ import annotations

from tradewind.dashboard.diagnosis import Diagnosis, diagnose
from tradewind.dashboard.model import RunModel

__all__ = ["Diagnosis", "RunModel", "diagnose"]
