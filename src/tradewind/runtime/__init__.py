"""The driver that runs nodes and controllers on real sockets and clocks; `group.connect` is its entry point.

It uses daemon threads with blocking sockets: a receiver and a sender for each data connection, one thread for the
control connection, and one for timers. One lock guards the state of the node; payloads are received, added and sent
without holding it.
"""

from __future__ import annotations
