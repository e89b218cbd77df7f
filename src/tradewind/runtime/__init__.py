"""The node and the controller on real sockets and clocks.

In-process daemon threads with blocking sockets: one to receive and one to send for each data connection, one for the
control connection, one that watches the time. One lock guards the engine's state; payloads are received, added and sent
outside of it. `group.connect` is the way in.
"""

from __future__ import annotations
