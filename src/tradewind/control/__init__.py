"""The controller: who is there, what the network is like, who synchronises when, and how the bytes travel.

A pure state machine as everything else: `controller.Controller` is told of connections, messages and the time, and
answers with messages to send. `deadlines` derives every time limit from one setting; `network` is what is known of the
network; `plans` makes plans and numbers them; `rounds` starts, repairs and commits rounds.
"""

from __future__ import annotations

from tradewind.control.controller import Controller
from tradewind.control.options import ControlOptions

__all__ = ["ControlOptions", "Controller"]
