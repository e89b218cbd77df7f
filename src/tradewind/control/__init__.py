"""The controller: membership, the view of the network, which ranks synchronise when, and which plan they use.

`controller.Controller` is a pure state machine: it receives connections, messages and the time, and returns messages to
send. `deadlines` derives every time limit from one setting; `network` estimates the links; `plans` makes plans and
numbers their versions; `rounds` starts, repairs and commits rounds.
"""

from __future__ import annotations

from tradewind.control.controller import Controller
from tradewind.control.options import ControlOptions

__all__ = ["ControlOptions", "Controller"]
